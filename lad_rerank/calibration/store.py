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
        """What all folders know of this identity; for each number of candidates the first folder counts.

        Raises:
            CalibrationFileError: The only file of this identity cannot be read.
            CalibrationMismatchError: A file was renamed by hand to an identity that is not its own.
        """
        found: Calibration | None = None
        unreadable: CalibrationFileError | None = None
        for folder in reversed(self.folders):
            path = self._file(folder, identity)
            if path is None:
                continue
            try:
                calibration = read_calibration(path)
            except CalibrationFileError as error:
                logger.warning("%s", error)
                unreadable = error
                continue
            calibration.check(identity, str(path))
            logger.info("Calibration %s covers %s candidates.", path, calibration.covers)
            found = calibration if found is None else found.merged(calibration)
        if found is None and unreadable is not None:
            raise unreadable
        return found

    def missing(self, identity: BackboneIdentity, model: str, n: int) -> CalibrationMissingError:
        """An error that says how to make the calibration, and which one was nearly right."""
        near = ""
        shown = {"image": "images", "text": "texts", "mixed": "candidates of which some have texts"}
        # Of the model's calibrations the one that differs least says most.
        others = self._others(identity, model)
        others.sort(key=lambda pair: len(pair[1].identity.differences(identity)))
        for path, other in others:
            if differing := other.identity.differences(identity):
                near = f" The calibration {path} is of this model, but differs in {describe(differing)}."
            else:
                near = f" The calibration {path} covers {other.covers} candidates."
            break
        pixels = f"--max-pixels {identity.max_pixels} " if identity.max_pixels else ""
        return CalibrationMissingError(
            f"There is no calibration of {model} for {n} {shown[identity.candidates]}.{near} Make one with: lad-rerank "
            f"calibrate --model {shlex.quote(model)} --labels {identity.labels} {pixels}"
            f"--spans {identity.spans} --dtype {identity.dtype} --candidates 2-{max(n, 8)} --samples FILE.jsonl "
            "(or LADReranker.calibrate(samples)). method='vanilla' needs none."
        )

    def save(self, calibration: Calibration) -> Path:
        """Write a calibration; numbers of candidates already in its file there are kept.

        The file appears whole or not at all, and processes that save at once wait for one another. A file
        there that cannot be read is replaced.

        Returns:
            Path of the file.

        Raises:
            CalibrationFileError: The folder cannot be written.
        """
        from filelock import FileLock

        try:
            self.save_to.mkdir(parents=True, exist_ok=True)
            with FileLock(self.save_to / ".lock"):
                return self._write(calibration)
        except OSError as error:
            raise CalibrationFileError(f"Cannot write a calibration to {self.save_to}: {error}.") from error

    def _write(self, calibration: Calibration) -> Path:
        path = self._file(self.save_to, calibration.identity)
        if path is None:
            slug = re.sub(r"[^A-Za-z0-9._-]+", "-", calibration.provenance.model).strip("-.")[-60:] or "model"
            path = self.save_to / f"{slug}-{identity_digest(calibration.identity)}.json"
        else:
            try:
                calibration = read_calibration(path).merged(calibration)
            except CalibrationFileError as error:
                logger.warning("%s It is replaced.", error)
        # A link stays a link: what it points to is written.
        path = path.resolve()
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
