from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lad_rerank.bundled.shop import (
    ATTRIBUTES,
    SIDE,
    VALUES,
    Product,
    adversarial_set,
    all_products,
    candidate_set,
    caption,
    catalogue,
    random_attributes,
    random_set,
    render,
    satisfies,
    split,
    vocabulary,
    wanted,
)
from lad_rerank.bundled.shop.products import WORDS

products = st.builds(Product, **{name: st.sampled_from(VALUES[name]) for name in ATTRIBUTES})
seeds = st.integers(0, 2**32 - 1)
names = st.sets(st.sampled_from(ATTRIBUTES))


def test_the_shop_is_large_enough() -> None:
    least = {"kind": 12, "colour": 10, "pattern": 6, "background": 4, "logo": 3}
    assert {name: len(VALUES[name]) for name in ATTRIBUTES} == least
    assert len(set(all_products())) == 12 * 10 * 6 * 4 * 3


def test_an_unknown_value_is_refused() -> None:
    with pytest.raises(ValueError, match="'tartan' is no pattern"):
        Product("mug", "red", "tartan", "wood", "star")


def test_the_split_is_disjoint_and_about_one_in_five() -> None:
    combinations = {side: {(p.kind, p.colour, p.pattern) for p in all_products(side)} for side in ("train", "held_out")}
    assert not combinations["train"] & combinations["held_out"]
    share = len(combinations["held_out"]) / 720
    assert 0.17 < share < 0.23
    for name in ("kind", "colour", "pattern"):
        assert {p.value(name) for p in all_products("held_out")} == set(VALUES[name])
        assert {p.value(name) for p in all_products("train")} == set(VALUES[name])


@given(products)
def test_background_and_logo_do_not_move_a_product_across_the_split(product: Product) -> None:
    twin = Product(product.kind, product.colour, product.pattern, "lawn", "none")
    assert split(twin) == split(product)


def test_no_word_has_two_meanings_within_an_attribute() -> None:
    for values in WORDS.values():
        phrases = [phrase for phrases in values.values() for phrase in phrases]
        assert len(phrases) == len(set(phrases))


@given(products, seeds)
def test_a_picture_depends_on_nothing_but_its_arguments(product: Product, seed: int) -> None:
    picture = render(product, seed)
    assert (picture.mode, picture.size) == ("RGB", (SIDE, SIDE))
    assert picture.tobytes() == render(product, seed).tobytes()
    assert picture.tobytes() != render(product, seed + 1).tobytes()


@pytest.mark.parametrize("attribute", ATTRIBUTES)
def test_every_value_of_an_attribute_changes_the_picture(attribute: str) -> None:
    base = {"kind": "mug", "colour": "red", "pattern": "plain", "background": "wood", "logo": "none"}
    pictures = {render(Product(**{**base, attribute: value}), 7).tobytes() for value in VALUES[attribute]}
    assert len(pictures) == len(VALUES[attribute])


@given(products, seeds, names)
def test_a_caption_says_what_is_stated_and_nothing_else(product: Product, seed: int, stated: set[str]) -> None:
    text = caption(product, seed, stated)
    assert text == " ".join(text.split())
    assert text
    for name in ATTRIBUTES:
        own = any(phrase in text for phrase in WORDS[name][product.value(name)])
        assert own == (name in stated or name == "kind") or name in ("kind", "colour", "pattern")
        if name in stated or name == "kind":
            assert own
    assert set(text.replace(",", " ").split()) <= set(vocabulary())


def test_the_plain_caption_is_the_title() -> None:
    product = Product("umbrella", "orange", "two-tone", "beach", "heart")
    assert caption(product, 3, synonyms=False) == "an orange two-tone umbrella with a heart logo on a beach"
    assert caption(product, 3, {"colour"}, synonyms=False) == "an orange umbrella"


def test_an_unknown_attribute_is_refused() -> None:
    with pytest.raises(ValueError, match="No such attribute: price"):
        caption(Product("mug", "red", "plain", "wood", "star"), 0, ["price"])


@given(products, products, names)
def test_satisfies_is_agreement_in_every_stated_attribute(a: Product, b: Product, stated: set[str]) -> None:
    asks = wanted(a, stated)
    assert "kind" in asks
    assert satisfies(a, asks)
    assert satisfies(b, asks) == (not set(a.differs(b)) & (stated | {"kind"}))


@given(seeds)
def test_partial_captions_name_two_to_four_attributes_and_always_the_kind(seed: int) -> None:
    found = random_attributes(seed)
    assert 2 <= len(found) <= 4
    assert found[0] == "kind"
    assert len(set(found)) == len(found)


def test_a_catalogue_repeats_no_product_before_it_must() -> None:
    items = catalogue(500, 1, "held_out")
    assert len({item.product for item in items}) == 500
    assert {split(item.product) for item in items} == {"held_out"}
    assert len({item.id for item in items}) == 500
    assert catalogue(500, 1, "held_out") == items
    assert catalogue(500, 2, "held_out") != items
    assert len(catalogue(2000, 1, "held_out")) == 2000
    assert satisfies(items[0].product, wanted(items[0].product))
    assert items[0].image().size == (SIDE, SIDE)


@pytest.mark.parametrize("difficulty", ["random", "adversarial"])
@pytest.mark.parametrize("n", [2, 8, 12])
def test_a_set_has_exactly_one_right_answer(difficulty: str, n: int) -> None:
    targets = set()
    for seed in range(60):
        attributes = random_attributes(seed) if seed % 2 else None
        found = candidate_set(n, seed, difficulty, "held_out", attributes)  # type: ignore[arg-type]
        right = [satisfies(item.product, found.attributes) for item in found.candidates]
        assert right == [i == found.target for i in range(n)]
        assert len({item.product for item in found.candidates}) == n
        assert {split(item.product) for item in found.candidates} == {"held_out"}
        targets.add(found.target)
        if difficulty == "adversarial":
            target = found.candidates[found.target].product
            apart = [len(target.differs(item.product)) for item in found.candidates]
            assert sorted(set(apart)) in ([0, 1], [0, 2], [0, 1, 2])
    assert len(targets) > 1


def test_sets_are_deterministic() -> None:
    assert random_set(4, 9) == random_set(4, 9)
    assert adversarial_set(4, 9) != adversarial_set(4, 10)


def test_a_set_of_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 2 candidates, got 1"):
        random_set(1, 0)
