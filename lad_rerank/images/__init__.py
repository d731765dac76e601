"""Any picture a caller may hold, as an upright RGB image: :func:`open_image`."""

from __future__ import annotations

from lad_rerank.images.limits import ImageLimits
from lad_rerank.images.loader import image_digest, open_image

__all__ = ["ImageLimits", "image_digest", "open_image"]
