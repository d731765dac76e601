"""The calibrations that come with the package: made of training products, for 2 to 12 candidates."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lad_rerank import bundled
from lad_rerank.bundled.shop import candidate_set
from lad_rerank.calibration.samples import CalibrationSample
from lad_rerank.calibration.store import CalibrationStore
from lad_rerank.prompt import LabelStyle
from lad_rerank.reranker import LADReranker

STYLES: tuple[LabelStyle, ...] = ("digits", "letters", "auto")
"""Label styles the bundled model was shown in training, and the one that chooses between them."""
SAMPLES = 5
LARGEST = 12


def calibration_samples(seed: int = 0, count: int = SAMPLES, n: int = LARGEST) -> list[CalibrationSample]:
    """Samples of products on the training side of the split: disjoint from every held-out set.

    Args:
        seed: Chooses the products.
        count: Number of samples.
        n: Images per sample.
    """
    sets = [candidate_set(n, seed=10_000 * seed + i, difficulty="random", side="train") for i in range(count)]
    return [CalibrationSample(s.caption, [item.image() for item in s.candidates], s.target) for s in sets]


def make_calibrations(folder: Path | None = None, progress: Callable[[int, int], None] | None = None) -> list[Path]:
    """Calibrate the bundled model in the label styles it knows.

    Args:
        folder: Where the files go; the package's own by default, whose old files are removed.
        progress: Called with (passes done, passes in all) of one style.

    Returns:
        Paths of the files.
    """
    folder = folder or bundled.calibration_folder()
    for old in folder.glob("*.json"):
        old.unlink()
    store = CalibrationStore([folder], folder)
    for labels in STYLES:
        model = LADReranker.from_pretrained("bundled", device="cpu", labels=labels, store=store)
        model.calibrate(calibration_samples(), progress=progress)
    # The store's lock has no place among shipped files.
    (folder / ".lock").unlink(missing_ok=True)
    return sorted(folder.glob("*.json"))
