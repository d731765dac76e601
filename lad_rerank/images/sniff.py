"""Say what bytes are that Pillow cannot open, and what to do about them. For messages only."""

from __future__ import annotations

_HEIF_BRANDS = frozenset({b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"mif1", b"msf1"})

_PREFIXES: tuple[tuple[bytes, str], ...] = (
    (b"8BPS", "a Photoshop document (PSD), which is not opened; export it as PNG or JPEG"),
    (b"%!PS", "PostScript (EPS), which is never run; export it as PNG or JPEG"),
    (b"\xc5\xd0\xd3\xc6", "PostScript (EPS), which is never run; export it as PNG or JPEG"),
    (b"\xff\x0a", "JPEG XL, which Pillow does not decode by itself; convert it to PNG or JPEG"),
    (b"\x00\x00\x00\x0cJXL ", "JPEG XL, which Pillow does not decode by itself; convert it to PNG or JPEG"),
    (b"PK\x03\x04", "a ZIP archive (or an Office document); give the pictures inside it"),
    (b"\x1f\x8b", "gzip-compressed; decompress it first"),
    (b"\xd7\xcd\xc6\x9a", "a Windows metafile (WMF), which is not opened; export it as PNG"),
)

_DAMAGED: tuple[tuple[bytes, str], ...] = (
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"\xff\xd8\xff", "JPEG"),
    (b"GIF8", "GIF"),
    (b"BM", "BMP"),
    (b"II*\x00", "TIFF"),
    (b"MM\x00*", "TIFF"),
)


def describe(data: bytes) -> str:
    """What ``data`` seems to be, as the end of the sentence "it is …".

    Args:
        data: The first bytes of something that no image decoder took; a kilobyte is enough.
    """
    if not data:
        return "empty (0 bytes); fetch or export the file again"
    head = data[:1024]
    for prefix, what in _PREFIXES:
        if head.startswith(prefix):
            return what
    if head[4:8] == b"ftyp":
        return _iso_media(head)
    for prefix, name in _DAMAGED:
        if head.startswith(prefix):
            return f"a damaged {name} file; fetch or export it again"
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "a damaged WebP file; fetch or export it again"
    return _text(head)


def _iso_media(head: bytes) -> str:
    brand = head[8:12]
    if brand in _HEIF_BRANDS:
        return (
            "HEIC/HEIF, which Pillow does not decode by itself; "
            'run "pip install pillow-heif" and call pillow_heif.register_heif_opener(), or convert it to JPEG'
        )
    if brand in (b"avif", b"avis"):
        return "a damaged AVIF file, or this Pillow was built without AVIF; convert it to PNG or JPEG"
    return "a video; give a frame of it as a picture"


def _text(head: bytes) -> str:
    if head.startswith(b"version https://git-lfs.github.com/spec/"):
        return 'a Git LFS pointer, not the picture itself; run "git lfs pull" in its repository'
    low = head.lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if b"%pdf-" in low:
        return "a PDF, which is not opened; render its pages to PNG"
    if low.startswith(b"<svg") or (low.startswith((b"<?xml", b"<!--", b"<!doctype svg")) and b"<svg" in low):
        return "SVG, which Pillow does not draw; render it to PNG"
    if low.startswith((b"<!doctype html", b"<html", b"<head", b"<body")):
        return "an HTML page (often an error or log-in page in place of the picture); check where it came from"
    if low.startswith((b"<?xml", b"<error")):
        return "XML (often a storage service's error message); check where it came from"
    if low.startswith((b"{", b"[")):
        return "JSON; give the picture itself"
    if not any(byte < 9 or 13 < byte < 32 or byte == 127 for byte in head):
        return "text; give the picture itself"
    return "in no image format that is opened here; convert it to PNG or JPEG"
