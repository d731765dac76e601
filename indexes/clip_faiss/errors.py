"""What can go wrong in the first stage."""

from __future__ import annotations

from lad_rerank.errors import LADRerankError


class FirstStageError(LADRerankError):
    """The encoder or the index cannot be used; the message names what does not fit and what to do."""
