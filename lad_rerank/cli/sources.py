"""Where ``lad-rerank evaluate`` takes its sets from."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lad_rerank.cli.progress import bar, note

if TYPE_CHECKING:
    from collections.abc import Sequence

    from lad_rerank.evaluation.builders import Vectors
    from lad_rerank.evaluation.prepared import Prepared, Wanted
    from lad_rerank.evaluation.titled import TitledImage


@dataclass(frozen=True)
class Source:
    """One of several kinds of sources, as options."""

    set_file: Annotated[
        Path | None,
        typer.Option(
            "--set", help='JSON lines {"id", "query", "candidates": [...], "target": index, id, path or null}.'
        ),
    ] = None
    index: Annotated[Path | None, typer.Option(help="Folder that `lad-rerank index` wrote; titles are asked.")] = None
    end_to_end: Annotated[
        bool, typer.Option("--end-to-end", help="Rank what the first stage finds in the index, misses counted.")
    ] = False
    k: Annotated[int, typer.Option("-k", "--k", min=2, max=26, help="How many the first stage finds.")] = 8
    images: Annotated[
        Path | None, typer.Option(help="Folder of images whose file names say what they show; those are asked.")
    ] = None
    encoder: Annotated[
        str, typer.Option(help="open_clip encoder that finds adversarial images of --images; see `lad-rerank index`.")
    ] = "bundled"
    annotations: Annotated[
        Path | None, typer.Option(help="JSON of records with image_ids, index and caption, as the paper's.")
    ] = None
    image_folder: Annotated[
        Path | None, typer.Option(help="Where the images of --annotations are, by id or as COCO names them.")
    ] = None
    shop: Annotated[bool, typer.Option("--shop", help="The shop of rendered products that ships with this.")] = False

    def check(self, observations: Path | None) -> None:
        """Refuse anything but one source.

        Args:
            observations: Stored passes, which are a source too.

        Raises:
            typer.BadParameter: None or several, or an option that belongs to another one.
        """
        given = {
            "--set": self.set_file,
            "--index": self.index,
            "--images": self.images,
            "--annotations": self.annotations,
            "--shop": self.shop or None,
            "--observations": observations,
        }
        named = [name for name, value in given.items() if value is not None]
        if len(named) != 1:
            raise typer.BadParameter(
                f"Give one of {', '.join(list(given)[:-1])} and {list(given)[-1]}; got {' and '.join(named) or 'none'}."
            )
        if (self.annotations is None) != (self.image_folder is None):
            raise typer.BadParameter("--annotations and --image-folder go together.")
        if self.end_to_end and self.index is None:
            raise typer.BadParameter("--end-to-end needs --index.")

    def told(self) -> str:
        """The source in words, for the report."""
        if self.set_file is not None:
            return f"set {self.set_file}"
        if self.index is not None:
            return f"index {self.index}{f', the {self.k} nearest of each query' if self.end_to_end else ''}"
        if self.images is not None:
            return f"images in {self.images}"
        if self.annotations is not None:
            return f"annotations {self.annotations}"
        return "held-out products of the bundled shop"

    @property
    def is_set(self) -> bool:
        """Whether it is a set with right answers, out of which samples are taken only where they are needed."""
        return self.set_file is not None or self.annotations is not None

    def prepare(
        self, wanted: Wanted, sample_file: Path | None = None, allow_urls: bool = False, unanswerable: bool = False
    ) -> Prepared:
        """Make the sets, and set samples apart.

        Args:
            wanted: What sets.
            sample_file: Calibration samples of one's own.
            allow_urls: Whether images of ``--set`` may be fetched.
            unanswerable: Whether to add sets of which half the items have no right answer.

        Raises:
            LADRerankError: Something cannot be read, or is too little.
        """
        from lad_rerank.calibration.samples import read_samples

        own = None if sample_file is None else tuple(read_samples(sample_file))
        prepared = self._prepare(wanted if own is None else replace(wanted, samples=0), allow_urls)
        if unanswerable:
            prepared = prepared.with_unanswerable(wanted.seed)
        return prepared if own is None else replace(prepared, samples=own)

    def _prepare(self, wanted: Wanted, allow_urls: bool) -> Prepared:
        from lad_rerank.evaluation import prepared

        if self.is_set:
            from lad_rerank.evaluation.annotations import set_from_annotations
            from lad_rerank.evaluation.opening import CandidateOpener
            from lad_rerank.evaluation.set_files import read_set

            if self.set_file is not None:
                evaluated = read_set(self.set_file)
            else:
                assert self.annotations is not None
                assert self.image_folder is not None
                evaluated = set_from_annotations(self.annotations, self.image_folder)
            return prepared.prepare_set(evaluated, wanted, opener=CandidateOpener(allow_urls=allow_urls))
        if self.index is not None:
            from clip_faiss import ClipFaissIndex

            loaded = ClipFaissIndex.load(self.index)
            with bar("Opening images") as progress:
                return prepared.prepare_index(
                    loaded, wanted, end_to_end=self.k if self.end_to_end else None, progress=progress
                )
        if self.images is not None:
            from lad_rerank.evaluation.titled import titled_folder

            with bar("Opening images") as progress:
                return prepared.prepare_titled(
                    titled_folder(self.images),
                    wanted,
                    vectors=self._vectors if "adversarial" in wanted.difficulties else None,
                    progress=progress,
                )
        return prepared.prepare_shop(wanted)

    def _vectors(self, images: Sequence[TitledImage]) -> Vectors:
        from clip_faiss import ClipEncoder
        from lad_rerank.evaluation.builders import encode_titled

        note(f"Encoding {len(images)} images with {self.encoder} ...")
        return encode_titled(ClipEncoder.load(self.encoder), images)
