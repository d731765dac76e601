"""First stage of image search: an open_clip encoder, FAISS, and the pictures' ids and metadata."""

from __future__ import annotations

from clip_faiss.encoder import ClipEncoder
from clip_faiss.errors import FirstStageError
from clip_faiss.fingerprint import EncoderFingerprint
from clip_faiss.index import ClipFaissIndex, Hit

__all__ = ["ClipEncoder", "ClipFaissIndex", "EncoderFingerprint", "FirstStageError", "Hit"]
