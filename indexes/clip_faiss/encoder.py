"""Pictures and texts to vectors, with any open_clip model."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from clip_faiss import _extras
from clip_faiss.errors import FirstStageError
from clip_faiss.fingerprint import (
    PROBE_LENGTH,
    PROBE_TEXT,
    EncoderFingerprint,
    json_settings,
    probe_picture,
)
from clip_faiss.progress import Progress, reporting
from clip_faiss.sources import find_model, no_remote_code
from lad_rerank.errors import ImageError, InvalidRequestError
from lad_rerank.images import open_image

if TYPE_CHECKING:
    from PIL.Image import Image

    from lad_rerank.records import ImageSource

_log = logging.getLogger(__name__)


class ClipEncoder:
    """An open_clip model, its tokenizer and its preprocessing.

    Everything is computed and normalised in float32, on every device. Encoding from several threads at
    once is safe.

    Args:
        model: An open_clip model, with the preprocessing settings that open_clip put on it. It is set to
            evaluation mode and converted to float32 in place.
        tokenizer: What ``open_clip.get_tokenizer`` returned for it.
        name: How an index names this encoder, and loads it again.
        pretrained: open_clip's weights tag, where there is one.

    Example:
        >>> encoder = ClipEncoder.load("bundled")
        >>> encoder.encode_texts(["a red mug", "a blue kite"]).shape
        (2, 96)
    """

    def __init__(self, model: Any, tokenizer: Any, *, name: str, pretrained: str | None = None) -> None:
        open_clip = _extras.open_clip()
        from open_clip.transform import PreprocessCfg, image_transform_v2

        self.model = model.float().eval()
        self.name = name
        self.pretrained = pretrained
        self._settings = dict(open_clip.get_model_preprocess_cfg(model))
        self._transform: Callable[[Image], Any] = image_transform_v2(PreprocessCfg(**self._settings), is_train=False)
        self._tokenizer = tokenizer
        # Fast tokenizers keep truncation as state: two threads in one of them raise "Already borrowed".
        self._tokenizer_lock = threading.Lock()

    @classmethod
    def load(
        cls, name_or_path: str = "bundled", *, pretrained: str | None = None, device: str | None = None
    ) -> ClipEncoder:
        """Load a model.

        Args:
            name_or_path: ``"bundled"`` (the tiny model that comes with the package), a local folder or
                ``"local-dir:FOLDER"`` with an ``open_clip_config.json``, or any name open_clip knows,
                ``"ViT-B-32"`` or ``"hf-hub:org/repository"``. Only the last two may use the network.
            pretrained: open_clip's weights tag or a checkpoint file, for names without a schema.
            device: ``"cpu"``, ``"cuda:1"``, ...; ``None`` takes a GPU where there is one.

        Returns:
            The encoder, in evaluation mode.

        Raises:
            FirstStageError: No such model or folder, no weights, or weights that do not fit.
            ImportError: open_clip is not installed.
        """
        import torch

        open_clip = _extras.open_clip()
        found = find_model(name_or_path, pretrained)
        where = device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            with _extras.root_logger_left_alone():
                model = open_clip.create_model(
                    found.open_clip_name, pretrained, precision="fp32", device=where, require_pretrained=True
                )
                tokenizer = open_clip.get_tokenizer(found.open_clip_name, **no_remote_code(found.open_clip_name))
        except Exception as error:  # open_clip, torch, transformers and safetensors each raise their own
            raise FirstStageError(f"The encoder {found.name!r} cannot be loaded: {error}") from error
        _log.info("First-stage encoder %s: float32 on %s.", found.name, where)
        return cls(model, tokenizer, name=found.name, pretrained=pretrained)

    @property
    def device(self) -> str:
        """Where the model's weights are, ``"cpu"`` or ``"cuda:0"``."""
        return str(next(self.model.parameters()).device)

    @property
    def dimension(self) -> int:
        """Length of the vectors."""
        return self.fingerprint.dimension

    @property
    def context_length(self) -> int:
        """Tokens of text that the model reads; longer texts are cut with a warning."""
        return int(self._tokenizer.context_length)

    @cached_property
    def fingerprint(self) -> EncoderFingerprint:
        """What an index remembers of its encoder: settings, and the vectors of a fixed picture and text."""
        picture = self.encode_pictures([probe_picture()])[0]
        text = self.encode_texts([PROBE_TEXT])[0]
        if len(picture) != len(text):
            raise FirstStageError(
                f"The encoder {self.name!r} makes vectors of {len(picture)} numbers from pictures "
                f"and of {len(text)} from texts; use a model with one space for both."
            )
        return EncoderFingerprint(
            name=self.name,
            pretrained=self.pretrained,
            dimension=len(picture),
            preprocess=json_settings(self._settings),
            probe_image=tuple(round(float(v), 6) for v in picture[:PROBE_LENGTH]),
            probe_text=tuple(round(float(v), 6) for v in text[:PROBE_LENGTH]),
        )

    def encode_images(
        self, images: Sequence[ImageSource], batch_size: int = 32, progress: Progress = False
    ) -> NDArray[np.float32]:
        """Encode pictures from anything that :func:`lad_rerank.images.open_image` opens.

        Args:
            images: n image sources.
            batch_size: Pictures per pass of the model.
            progress: See :data:`clip_faiss.progress.Progress`.

        Returns:
            (n, dimension) float32, rows of length 1.

        Raises:
            ImageError: A picture cannot be opened; the message says which. An index is more patient:
                see :meth:`clip_faiss.ClipFaissIndex.build`.
        """
        parts: list[NDArray[np.float32]] = []
        with reporting(progress, len(images), "Encoding") as report:
            for start in range(0, len(images), batch_size):
                pictures = []
                for i, source in enumerate(images[start : start + batch_size], start):
                    try:
                        pictures.append(open_image(source))
                    except ImageError as error:
                        raise ImageError(f"Image {i}: {error}") from error
                parts.append(self.encode_pictures(pictures))
                report(start + len(pictures))
        return np.concatenate(parts) if parts else np.empty((0, self.dimension), np.float32)

    def encode_pictures(self, pictures: Sequence[Image]) -> NDArray[np.float32]:
        """Encode opened RGB pictures in one pass of the model; same result as :meth:`encode_images`."""
        import torch

        if not pictures:
            return np.empty((0, self.dimension), np.float32)
        batch = torch.stack([self._transform(picture) for picture in pictures])
        with torch.inference_mode():
            return _normalised(self.model.encode_image(batch.to(self.device)), self.name)

    def encode_texts(self, texts: Sequence[str], batch_size: int = 256) -> NDArray[np.float32]:
        """Encode texts.

        Args:
            texts: m texts, none of them blank. What exceeds the model's context is cut, with a warning
                in the log; a reranker still gets the whole query.
            batch_size: Texts per pass of the model.

        Returns:
            (m, dimension) float32, rows of length 1.

        Raises:
            InvalidRequestError: A text is blank or no string.
        """
        import torch

        if isinstance(texts, str):
            raise InvalidRequestError("encode_texts takes a list of texts; put the one text in a list.")
        clean = [_clean(text, i) for i, text in enumerate(texts)]
        if not clean:
            return np.empty((0, self.dimension), np.float32)
        parts = []
        for start in range(0, len(clean), batch_size):
            chunk = clean[start : start + batch_size]
            with self._tokenizer_lock:
                self._warn_of_cuts(chunk, start)
                tokens = self._tokenizer(chunk)
            with torch.inference_mode():
                parts.append(_normalised(self.model.encode_text(tokens.to(self.device)), self.name))
        return np.concatenate(parts)

    def _warn_of_cuts(self, texts: Sequence[str], start: int) -> None:
        for i, text in enumerate(texts, start):
            # open_clip's own BPE has no way to count tokens with the two markers; Hugging Face's has.
            if hasattr(self._tokenizer, "encode"):
                length = len(self._tokenizer.encode(text)) + 2
            else:
                length = len(self._tokenizer.tokenizer(text, truncation=False, verbose=False).input_ids)
            if length > self.context_length:
                _log.warning(
                    "Text %d is cut for the first stage: %d tokens, and %s reads %d.",
                    i,
                    length,
                    self.name,
                    self.context_length,
                )

    def __repr__(self) -> str:
        return f"ClipEncoder({self.name!r}, device={self.device!r})"


def _clean(text: str, index: int) -> str:
    if not isinstance(text, str):
        raise InvalidRequestError(f"Text {index} is a {type(text).__name__}; the first stage searches by strings.")
    if not text.strip():
        raise InvalidRequestError(f"Text {index} is blank; say what to look for.")
    # Lone surrogates come from broken decoding elsewhere, and tokenizers refuse them.
    return text.encode("utf-8", "replace").decode("utf-8")


def _normalised(vectors: Any, name: str) -> NDArray[np.float32]:
    """Scale rows to length 1, in float32: (n, d) tensor to array."""
    rows = vectors.float()
    rows = rows / rows.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    array: NDArray[np.float32] = rows.cpu().numpy()
    if not np.isfinite(array).all():
        raise FirstStageError(f"The encoder {name!r} returned NaN or infinite numbers; its weights are unusable.")
    return array
