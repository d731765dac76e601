"""The calibrations a reranker works with: one for each kind of candidates, given or found in its store."""

from __future__ import annotations

import logging
from os import PathLike
from pathlib import Path

from lad_rerank.backbones.base import Backbone
from lad_rerank.calibration.record import Calibration, read_calibration
from lad_rerank.calibration.store import CalibrationStore
from lad_rerank.contents import CandidateKind
from lad_rerank.debias.bias import PositionBias
from lad_rerank.errors import CalibrationFileError

logger = logging.getLogger(__name__)


class CalibrationsInUse:
    """A backbone's calibrations by kind of candidates; threads may share one.

    Args:
        backbone: The model.
        store: Where calibrations are looked for.
        given: A calibration, or the path of one, that counts before the store's.

    Raises:
        CalibrationFileError: ``given`` is a path and cannot be read.
        CalibrationMismatchError: ``given`` was made for another model or other settings.
    """

    def __init__(
        self, backbone: Backbone, store: CalibrationStore, given: Calibration | str | PathLike[str] | None = None
    ) -> None:
        self._backbone = backbone
        self._store = store
        self._known: dict[CandidateKind, Calibration] = {}
        source = "given"
        if isinstance(given, (str, PathLike)):
            source = str(given)
            given = read_calibration(Path(given))
        if given is not None:
            kind = given.identity.candidates
            given.check(backbone.identity.for_kind(kind), source)
            self._known[kind] = given

    def of_kind(self, kind: CandidateKind) -> Calibration | None:
        """The calibration for a kind of candidates: the one given, or the one the store holds."""
        if kind not in self._known:
            found = self._store.find(self._backbone.identity.for_kind(kind))
            if found is not None:
                # Another thread may have calibrated meanwhile.
                self._known.setdefault(kind, found)
        return self._known.get(kind)

    def add(self, made: Calibration) -> Calibration:
        """Use a new calibration from now on.

        Returns:
            It, with what was known for other numbers of candidates before.
        """
        kind = made.identity.candidates
        try:
            known = self.of_kind(kind)
        except CalibrationFileError as error:
            logger.warning("%s It is made anew.", error)
            known = None
        self._known[kind] = merged = known.merged(made) if known is not None else made
        return merged

    def position_bias(self, n: int, kind: CandidateKind, of_list: CandidateKind) -> PositionBias:
        """What is known for n candidates.

        Args:
            n: Number of candidates in one pass.
            kind: What they are.
            of_list: What the whole list consists of. A window of a mixed list may hold one kind only, which no caller
                can foresee; where that kind has no calibration, the list's own stands in, and the log says so.

        Raises:
            CalibrationMissingError: There is none; the message says how to make it.
        """
        for nearest in dict.fromkeys((kind, of_list)):
            calibration = self.of_kind(nearest)
            if calibration is not None and n in calibration.counts:
                if nearest != kind:
                    logger.warning(
                        "A window of a %s list holds candidates of kind %s only, of which there is no calibration for "
                        "%d; the list's own is used.",
                        *(of_list, kind, n),
                    )
                return calibration.position_bias(n)
        raise self._store.missing(self._backbone.identity.for_kind(kind), self._backbone.name, n)
