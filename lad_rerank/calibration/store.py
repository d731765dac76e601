"""Where calibrations are kept, and how one is found again by the identity of its backbone."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from lad_rerank.backbones.base import BackboneIdentity
from lad_rerank.calibration.record import Calibration, describe, read_calibration
from lad_rerank.errors import CalibrationFileError, CalibrationMissingError
from lad_rerank.files import replacing

logger = logging.getLogger(__name__)

HOME_VARIABLE = "LAD_RERANK_HOME"


def user_folder() -> Path:
    """Where new calibrations go: ``$LAD_RERANK_HOME/calibrations``, else below the user's data folder."""
    import platformdirs

    home = os.environ.get(HOME_VARIABLE)
    root = Path(home).expanduser() if home else Path(platformdirs.user_data_dir("lad-rerank", appauthor=False))
    return root / "calibrations"


def search_folders() -> tuple[Path, ...]:
    """Folders that are searched, in this order: ``LAD_RERANK_HOME``, user data, shipped."""
    import platformdirs

    from lad_rerank import bundled

    user_data = Path(platformdirs.user_data_dir("lad-rerank", appauthor=False)) / "calibrations"
    return tuple(dict.fromkeys((user_folder(), user_data, bundled.calibration_folder())))


def identity_digest(identity: BackboneIdentity) -> str:
    """12 hexadecimal digits that name a backbone's identity."""
    text = json.dumps(asdict(identity), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


class CalibrationStore:
    """Calibration files in a few folders.

    Args:
        folders: Searched in this order; :func:`search_folders` by default.
        save_to: Where :meth:`save` writes; :func:`user_folder` by default.
    """

    def __init__(self, folders: Sequence[Path] | None = None, save_to: Path | None = None) -> None:
        self.save_to = save_to or user_folder()
        default = dict.fromkeys((self.save_to, *search_folders()))
        self.folders = tuple(folders if folders is not None else default)

    def find(self, identity: BackboneIdentity) -> Calibration | None:
        """The calibration made for this identity, from the first folder that holds one."""
        for folder in self.folders:
            if path := self._file(folder, identity):
                calibration = read_calibration(path)
                calibration.check(identity, str(path))
                logger.info("Calibration %s covers %s candidates.", path, calibration.covers)
                return calibration
        return None

    def missing(self, identity: BackboneIdentity, model: str, n: int) -> CalibrationMissingError:
        """An error that says how to make the calibration, and which one was nearly right."""
        near = ""
        for path, other in self._others(identity, model):
            differing = describe(other.identity.differences(identity))
            near = f" The calibration {path} is of this model, but differs in {differing}."
            break
        labels = "" if identity.labels == "digits" else f" --labels {identity.labels}"
        return CalibrationMissingError(
            f"There is no calibration of {model} for {n} candidates.{near} Make one with: "
            f"lad-rerank calibrate --model {shlex.quote(model)}{labels} --samples FILE.jsonl "
            f"--candidates 2-{max(n, 8)} (or LADReranker.calibrate(samples)). method='vanilla' needs none."
        )

    def save(self, calibration: Calibration) -> Path:
        """Write a calibration; numbers of candidates already in its file there are kept.

        The file appears whole or not at all.

        Returns:
            Path of the file.
        """
        path = self._file(self.save_to, calibration.identity)
        if path is not None:
            calibration = read_calibration(path).merged(calibration)
        else:
            slug = re.sub(r"[^A-Za-z0-9._-]+", "-", calibration.provenance.model).strip("-.")[-60:] or "model"
            path = self.save_to / f"{slug}-{identity_digest(calibration.identity)}.json"
        with replacing(path) as temporary:
            temporary.write_text(calibration.to_json(), encoding="utf-8")
        logger.info("Calibration written to %s.", path)
        return path

    @staticmethod
    def _file(folder: Path, identity: BackboneIdentity) -> Path | None:
        return next(iter(sorted(folder.glob(f"*-{identity_digest(identity)}.json"))), None)

    def _others(self, identity: BackboneIdentity, model: str) -> list[tuple[Path, Calibration]]:
        """Readable calibrations of the same weights or the same model name."""
        found = []
        for folder in self.folders:
            for path in sorted(folder.glob("*.json")):
                try:
                    calibration = read_calibration(path)
                except CalibrationFileError as error:
                    logger.warning("%s", error)
                    continue
                if calibration.identity.weights == identity.weights or calibration.provenance.model == model:
                    found.append((path, calibration))
        return found
