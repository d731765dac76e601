"""``lad-rerank index``: a folder of images becomes an index."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import typer

from lad_rerank.cli import options
from lad_rerank.cli.output import NothingRankedError, command
from lad_rerank.cli.progress import bar


def index(
    folder: Annotated[Path, typer.Argument(help="Folder of images, those in folders below it too.", metavar="FOLDER")],
    out: Annotated[Path, typer.Option(help="Folder to write the index into.")],
    encoder: Annotated[
        str, typer.Option(help="open_clip encoder: 'bundled', a name it knows, hf-hub:ID or local-dir:FOLDER.")
    ] = "bundled",
    pretrained: Annotated[
        str | None,
        typer.Option(help="Weights of an encoder known by name, such as 'laion2b_s34b_b79k'."),
    ] = None,
    as_json: options.AsJson = False,
    debug: options.Debug = False,
) -> None:
    """Index a folder of images with CLIP and FAISS, to be searched by `lad-rerank search`.

    An image that cannot be opened is named, and the others are indexed.
    """
    with command(as_json=as_json, debug=debug) as output:
        from clip_faiss import ClipEncoder, ClipFaissIndex
        from lad_rerank.cli.rerank import failed_documents

        started = time.perf_counter()
        with bar("Encoding images") as progress:
            built = ClipFaissIndex.build(
                folder, encoder=ClipEncoder.load(encoder, pretrained=pretrained), progress=progress
            )
        if not len(built):
            raise NothingRankedError(
                f"There is nothing to index in {folder}: {len(built.failed)} images were found, none could be opened."
            )
        built.save(out)
        if not as_json:
            for failed in built.failed:
                typer.echo(f"Not indexed: {failed.id}: {failed.error}", err=True)
        document: dict[str, Any] = {
            "index": str(out),
            "folder": str(folder),
            "encoder": built.encoder.name,
            "indexed": len(built),
            "failed": failed_documents(built.failed),
            "seconds": round(time.perf_counter() - started, 3),
        }
        output.emit(
            document,
            lambda console: console.print(
                f"{len(built)} images indexed in {out} by the encoder {built.encoder.name}"
                f" ({document['seconds']:.1f} s, {len(built.failed)} failed).\n"
                f'Search it with: lad-rerank search {out} "QUERY"',
                soft_wrap=True,
            ),
        )
