"""A whole evaluation: passes over sets, rows scored from them, and what is said of those."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timezone
from os import PathLike
from typing import TYPE_CHECKING, Any, TypeAlias

from lad_rerank.calibration.store import CalibrationStore
from lad_rerank.debias.scoring import SCORERS
from lad_rerank.errors import InvalidRequestError, LADRerankError
from lad_rerank.evaluation.calibrating import UsedCalibration, calibration_for
from lad_rerank.evaluation.confidence import confidence_report
from lad_rerank.evaluation.measuring import slice_report
from lad_rerank.evaluation.opening import CandidateOpener
from lad_rerank.evaluation.orders import observe_orders
from lad_rerank.evaluation.reports import Evaluation, SliceReport
from lad_rerank.evaluation.rows import IDENTITY, RANDOM, stored_rows
from lad_rerank.evaluation.sets import EvaluationSet, named, open_set
from lad_rerank.evaluation.stored import ObservedSet, StoredObservations, save_observations

if TYPE_CHECKING:
    from lad_rerank.backbones.base import Backbone
    from lad_rerank.calibration.record import Calibration
    from lad_rerank.calibration.samples import CalibrationSample
    from lad_rerank.contents import CandidateKind
    from lad_rerank.reranker import LADReranker

Report: TypeAlias = Callable[[int, int], None]
"""Called with (done, in all)."""

Bars: TypeAlias = Callable[[str], AbstractContextManager[Report]]
"""Called with a title."""


@contextmanager
def quiet(title: str) -> Iterator[Report]:
    """Show no progress."""
    yield lambda done, total: None


def one_pass_rows() -> tuple[str, ...]:
    """Names of the rows that stored passes are enough for."""
    return (IDENTITY, RANDOM, *SCORERS)


def row_names(wanted: str | Sequence[str] | None = None) -> tuple[str, ...]:
    """Names of rows.

    Args:
        wanted: Names; or ``"one-pass"``, the default, or ``"all"``.

    Raises:
        InvalidRequestError: A name that is none; the message lists them.
    """
    if wanted is None or wanted == "one-pass":
        return one_pass_rows()
    names = () if wanted == "all" else tuple(dict.fromkeys([wanted] if isinstance(wanted, str) else wanted))
    if names and set(names) <= set(one_pass_rows()):
        return names
    from lad_rerank.evaluation.extra_passes import EXTRA_ROWS

    every = (*one_pass_rows(), *EXTRA_ROWS)
    unknown = [name for name in names if name not in every]
    if unknown or (not names and wanted != "all"):
        raise InvalidRequestError(
            f"Unknown rows {', '.join(unknown) or '(none given)'}; choose among {', '.join(every)}, or say one-pass or "
            "all."
        )
    return names or every


def evaluate(
    reranker: LADReranker,
    sets: Sequence[EvaluationSet],
    *,
    samples: Sequence[CalibrationSample] = (),
    recalibrate: bool = False,
    rows: str | Sequence[str] | None = None,
    orders: int = 5,
    seed: int = 0,
    null: bool | None = None,
    opener: CandidateOpener | None = None,
    save: str | PathLike[str] | None = None,
    settings: Mapping[str, Any] | None = None,
    bars: Bars = quiet,
) -> Evaluation:
    """Show every candidate list in several orders, and measure what each method makes of what was seen.

    Args:
        reranker: The model. Its own method does not matter; neither it nor its store is changed.
        sets: What is evaluated.
        samples: Calibration samples, used for numbers of candidates that the model is not calibrated for. They
            must share nothing with the sets.
        recalibrate: Calibrate on the samples in any case.
        rows: See :func:`row_names`. Rows that need passes of their own take as many times longer.
        orders: T, in how many orders each list is shown.
        seed: Chooses the orders.
        null: Also ask a query that says nothing about each list; by default where a calibration reads it.
        opener: Opens candidates; a new one by default.
        save: A file for the passes, to be scored again with :func:`rescore`.
        settings: What else the report shall tell of how this was run; values as JSON has them.
        bars: Shows progress.

    Returns:
        One slice for each set.

    Raises:
        EvaluationSetError: A candidate cannot be opened, or a set holds lists of several kinds.
        OverlapError: A sample shares a picture or a query with a set.
        InvalidRequestError: Unknown rows, fewer than one order, or ``recalibrate`` without samples.
        PromptTooLongError: A prompt does not fit the model.
        BackboneError: The model did not behave as it must.
    """
    names = row_names(rows)
    if orders < 1:
        raise InvalidRequestError(f"At least one order must be shown, got {orders}.")
    sets = named(sets)
    backbone = reranker.backbone
    opener = opener or CandidateOpener(allow_urls=reranker.allow_urls, limits=reranker.limits)
    opened = []
    for one in sets:
        with bars(f"Opening {_title(one)}") as progress:
            opened.append(open_set(one, opener=opener, progress=progress))
    used: dict[CandidateKind, UsedCalibration] = {}
    for kind in dict.fromkeys(one.kind for one in sets):
        own = [one for one in sets if one.kind == kind]
        with bars("Calibrating") as progress:
            used[kind] = calibration_for(
                reranker, own, samples, recalibrate=recalibrate, opener=opener, progress=progress
            )
    observed = []
    for one, instances in zip(sets, opened, strict=True):
        asked = used[one.kind].reads_null if null is None else null
        with bars(f"Showing {_title(one)}") as progress:
            seen = observe_orders(backbone, instances, orders=orders, seed=seed, null=asked, progress=progress)
        observed.append(ObservedSet(one.name, one.digest(opener), instances, seen, one.kind))
    stored = StoredObservations(
        model=reranker.model,
        identity=backbone.identity,
        sets=tuple(observed),
        calibrations=tuple(one.calibration for one in used.values() if one.calibration is not None),
        settings={
            **(settings or {}),
            "orders": orders,
            "seed": seed,
            "calibration": " ".join(dict.fromkeys(one.told for one in used.values())),
            "identity": asdict(backbone.identity),
        },
    )
    if save is not None:
        save_observations(stored, save)
    return _Scoring(names, orders, seed, backbone, bars).evaluation(stored)


def rescore(
    stored: StoredObservations,
    *,
    calibration: Calibration | None = None,
    store: CalibrationStore | None = None,
    rows: str | Sequence[str] | None = None,
    bars: Bars = quiet,
) -> Evaluation:
    """Measure passes that were made before: no model, no picture.

    Args:
        stored: What :func:`lad_rerank.evaluation.stored.load_observations` read.
        calibration: A calibration of the same model and settings, in place of the one that lies with the passes,
            or else the store's.
        store: Where calibrations are looked for.
        rows: See :func:`row_names`; rows that need passes of their own are left out.
        bars: Shows progress.

    Raises:
        CalibrationMismatchError: The calibration is of another model or other settings.
        InvalidRequestError: Unknown rows.
    """
    names = row_names(rows)
    kinds = dict.fromkeys(one.kind for one in stored.sets)
    identities = [stored.identity.for_kind(kind) for kind in kinds]
    settings = dict(stored.settings)
    known = stored.calibrations
    if calibration is not None:
        fitting = next((one for one in identities if not one.differences(calibration.identity)), identities[0])
        calibration.check(fitting, "given")
        known = (calibration, *(one for one in known if one.identity != fitting))
        settings["calibration"] = "The calibration given was used; what it was made of is not known here."
    for identity in identities:
        if all(one.identity != identity for one in known):
            found = (store or CalibrationStore()).find(identity)
            known += () if found is None else (found,)
            if found is not None:
                settings["calibration"] = "A stored calibration was used; what it was made of is not known here."
    seed = settings.get("seed")
    orders = max(len(one.observed.runs) for one in stored.sets)
    scoring = _Scoring(names, orders, seed if isinstance(seed, int) else 0, None, bars)
    return scoring.evaluation(replace(stored, calibrations=known, settings=settings))


@dataclass(frozen=True)
class _Scoring:
    """How rows are made of passes.

    Attributes:
        names: Of the rows.
        orders: T.
        seed: Chooses orders of rows with passes of their own, as it chose those of the others.
        backbone: What makes such passes; ``None`` where there is no model.
        bars: Shows progress.
    """

    names: Sequence[str]
    orders: int
    seed: int
    backbone: Backbone | None
    bars: Bars

    def evaluation(self, stored: StoredObservations) -> Evaluation:
        """Score and measure all sets."""
        by_identity = {one.identity: one for one in stored.calibrations}
        slices = [self.slice(one, by_identity.get(stored.identity.for_kind(one.kind))) for one in stored.sets]
        settings = {**stored.settings, "rows": list(self.names), "passes made": stored.created, **stored.versions}
        created = datetime.now(timezone.utc).isoformat(timespec="seconds")
        return Evaluation(stored.model, settings, created, tuple(slices))

    def slice(self, one: ObservedSet, calibration: Calibration | None) -> SliceReport:
        """Score and measure one set."""
        scorers = [name for name in self.names if name in SCORERS]
        made = stored_rows(one.observed, one.instances, calibration, methods=scorers, seed=self.seed)
        by_name = {row.name: row for row in made.rows}
        left_out = dict(made.left_out)
        for name in self.names:
            if name in one_pass_rows():
                continue
            from lad_rerank.evaluation.extra_passes import EXTRA_ROWS

            if self.backbone is None:
                left_out[name] = "It needs passes of its own, and stored observations have no model."
                continue
            try:
                with self.bars(f"{name}: {one.name}") as progress:
                    by_name[name] = EXTRA_ROWS[name].run(
                        self.backbone, one.instances, self.orders, self.seed, calibration, progress
                    )
            except LADRerankError as error:
                left_out[name] = str(error)
        return slice_report(
            one.name,
            one.instances,
            [by_name[name] for name in self.names if name in by_name],
            set_digest=one.digest,
            calibration_digest=_calibration_digest(calibration, {instance.n for instance in one.instances}),
            shown=one.observed.shown,
            left_out=left_out,
            confidence=confidence_report(one.observed, one.instances, calibration),
        )


def _calibration_digest(calibration: Calibration | None, counts: set[int]) -> str | None:
    """Digests of the samples behind the calibration for these numbers of candidates."""
    if calibration is None:
        return None
    digests = [calibration.counts[n].sample_digest for n in sorted(counts) if n in calibration.counts]
    return ", ".join(dict.fromkeys(digests)) or None


def _title(one: EvaluationSet) -> str:
    return f"{one.name}, {one.counts[-1]} candidates"
