"""What can go wrong, one class each.

Every message says what was wrong, which candidate or field it concerns, and what to do about it.
"""

from __future__ import annotations


class LADRerankError(Exception):
    """Base of every error this package raises on purpose."""


class InvalidRequestError(LADRerankError, ValueError):
    """An argument cannot be used: an empty query, a top_n below one, an unknown method."""


class ImageError(LADRerankError, ValueError):
    """One image could not be opened, or is over a limit. The other candidates are not concerned."""


class BackboneError(LADRerankError, RuntimeError):
    """The model cannot be used for reranking, or did not behave as a backbone must."""


class AttentionNotSeenError(BackboneError):
    """The pass ran, but the attention of the read-out rows did not arrive or is no distribution."""


class PromptTooLongError(LADRerankError, ValueError):
    """The prompt does not fit the model's context window. Nothing is ever truncated instead."""


class CalibrationError(LADRerankError):
    """Base of all that concerns calibrations."""


class CalibrationMissingError(CalibrationError, LookupError):
    """There is no calibration for this model, these settings and this number of candidates."""


class CalibrationMismatchError(CalibrationError, ValueError):
    """A calibration was made for another model or other settings; the message names the fields."""


class CalibrationFileError(CalibrationError, ValueError):
    """A calibration file cannot be read: no JSON, another schema, or arrays that do not fit."""


class CalibrationSampleError(CalibrationError, ValueError):
    """A calibration sample is unusable, or there are too few of them."""


class DegenerateScoresError(LADRerankError, ArithmeticError):
    """Scores are NaN, infinite or all equal: they are no ranking and are not returned as one."""


class EvaluationError(LADRerankError, ValueError):
    """Base of all that concerns evaluations."""


class EvaluationSetError(EvaluationError):
    """An evaluation set is unusable: a file, a line or a field of it, or too little to make one of."""


class OverlapError(EvaluationError):
    """Something a model was calibrated on is in the set it shall be evaluated on."""


class ObservationFileError(EvaluationError):
    """A file of stored observations cannot be read or written, or does not fit what it is used for."""


class RowUnavailableError(EvaluationError):
    """A row of an evaluation cannot be made with this model or these calibrations; the others are not concerned."""
