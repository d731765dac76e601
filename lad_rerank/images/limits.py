"""What a picture may cost before it is decoded."""

from __future__ import annotations

from dataclasses import dataclass, fields

from lad_rerank.errors import ImageError, InvalidRequestError


@dataclass(frozen=True)
class ImageLimits:
    """Bounds that are checked before any pixel is decoded. ``None`` lifts one.

    Attributes:
        max_pixels: Width x height of the picture. The default is where Pillow itself starts to warn of
            decompression bombs; whatever is set here, Pillow refuses twice its own
            ``PIL.Image.MAX_IMAGE_PIXELS``.
        max_bytes: Size of the file, stream, download or decoded base64 text, in bytes.
        max_aspect: Long side over short side. Qwen's image processors refuse more than 200:1, and a
            strip that thin shows nothing once it is resized.
        timeout: Seconds a download may take, from the first connection to the last byte.
    """

    max_pixels: int | None = 89_478_485
    max_bytes: int | None = 100 * 2**20
    max_aspect: float | None = 200.0
    timeout: float | None = 15.0

    def __post_init__(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if value is not None and not value > 0:
                raise InvalidRequestError(f"ImageLimits.{item.name} must be above zero or None, got {value!r}.")

    def check_size(self, size: tuple[int, int], name: str) -> None:
        """Refuse a picture of ``size`` (width, height) that is empty, too large or too thin.

        Raises:
            ImageError: Names the picture, its size and the limit.
        """
        width, height = size
        if width < 1 or height < 1:
            raise ImageError(f"{name} is {width}x{height}: it has no pixels.")
        if self.max_pixels is not None and width * height > self.max_pixels:
            raise ImageError(
                f"{name} claims {width}x{height} = {width * height:,} pixels; at most {self.max_pixels:,} are "
                f"decoded. Shrink it, or raise ImageLimits.max_pixels."
            )
        long, short = max(size), min(size)
        if self.max_aspect is not None and long > self.max_aspect * short:
            raise ImageError(
                f"{name} is {width}x{height}, thinner than {self.max_aspect:g}:1, which vision models refuse. "
                f"Crop it, or raise ImageLimits.max_aspect."
            )

    def check_bytes(self, count: int, name: str) -> None:
        """Refuse an encoded picture of more than ``max_bytes``.

        Raises:
            ImageError: Names the picture and the limit.
        """
        if self.max_bytes is not None and count > self.max_bytes:
            raise ImageError(
                f"{name} is larger than {self.max_bytes:,} bytes. Use a smaller file, or raise ImageLimits.max_bytes."
            )
