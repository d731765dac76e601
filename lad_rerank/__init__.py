"""lad-rerank: rank images with a multimodal LLM in one forward pass, whatever their order."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lad_rerank.calibration.record import Calibration
    from lad_rerank.calibration.samples import CalibrationSample, read_samples, samples_from_texts, samples_from_titles
    from lad_rerank.calibration.store import CalibrationStore
    from lad_rerank.debias.scoring import ScoringSettings
    from lad_rerank.records import Candidate, FailedCandidate, Observation, RankedCandidate, Ranking
    from lad_rerank.reranker import LADReranker

__version__ = "0.1.0"

# Names are imported on first use, so that `import lad_rerank` costs nothing.
_HOMES = {
    "Calibration": "lad_rerank.calibration.record",
    "CalibrationSample": "lad_rerank.calibration.samples",
    "CalibrationStore": "lad_rerank.calibration.store",
    "Candidate": "lad_rerank.records",
    "FailedCandidate": "lad_rerank.records",
    "LADReranker": "lad_rerank.reranker",
    "Observation": "lad_rerank.records",
    "RankedCandidate": "lad_rerank.records",
    "Ranking": "lad_rerank.records",
    "ScoringSettings": "lad_rerank.debias.scoring",
    "read_samples": "lad_rerank.calibration.samples",
    "samples_from_texts": "lad_rerank.calibration.samples",
    "samples_from_titles": "lad_rerank.calibration.samples",
}

__all__ = [
    "Calibration",
    "CalibrationSample",
    "CalibrationStore",
    "Candidate",
    "FailedCandidate",
    "LADReranker",
    "Observation",
    "RankedCandidate",
    "Ranking",
    "ScoringSettings",
    "read_samples",
    "samples_from_texts",
    "samples_from_titles",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'lad_rerank' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
