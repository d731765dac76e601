"""Candidates' keys and values kept from one question to the next: in a bounded memory, and on disk where wanted."""

from __future__ import annotations

import hashlib
import json
import logging
import threading
import zlib
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lad_rerank.backbones.blocks import Block, BlockDtype, BlockFacts, Layers, PackedBlock, moved, pack, unpack
from lad_rerank.backbones.identity import text_digest
from lad_rerank.backbones.memory import BoundedMemory
from lad_rerank.files import replacing

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class BlockReport:
    """What keeping blocks has done so far.

    Attributes:
        memory_hits: Blocks found in memory.
        disk_hits: Blocks found on disk.
        made: Blocks that had to be run.
        refused: Entries on disk that were damaged or of something else, and not used.
        bytes_in_memory: Bytes in memory now.
        bytes_read: Bytes of blocks read from disk.
        bytes_written: Bytes of blocks written to disk.
    """

    memory_hits: int = 0
    disk_hits: int = 0
    made: int = 0
    refused: int = 0
    bytes_in_memory: int = 0
    bytes_read: int = 0
    bytes_written: int = 0


class BlockStore:
    """Blocks by the digest of their content. Threads may share one.

    Blocks are kept packed, and a new block is packed and unpacked before its first use too: what comes out does not
    depend on whether it was kept.

    Args:
        settings: All that blocks depend on beside their content, as text.
        dtype: How they are packed.
        max_bytes: Bytes kept in memory at most, on the model's devices.
        folder: Keep them on disk too, one safetensors file each, in a subfolder per settings.
    """

    def __init__(self, settings: str, dtype: BlockDtype, max_bytes: int, folder: Path | None = None) -> None:
        self._settings = f"{settings} {dtype}"
        self._dtype: BlockDtype = dtype
        self._memory: BoundedMemory[str, PackedBlock] = BoundedMemory(max_bytes, lambda b: b.nbytes)
        self.folder = None if folder is None else folder / f"blocks-{text_digest(self._settings)}"
        self._counts = BlockReport()
        self._lock = threading.Lock()

    def get(self, digest: str, like: Layers) -> Block | None:
        """A block, or ``None`` where there is none that can be used.

        Args:
            digest: Names its content.
            like: Keys and values whose devices and types are wanted.
        """
        packed = self._memory.get(digest)
        if packed is not None:
            self._count(memory_hits=1)
            return unpack(packed, like)
        if self.folder is None or not (path := self._path(digest)).is_file():
            return None
        from safetensors import SafetensorError

        try:
            packed = moved(self._read(path, digest), like)
            block = unpack(packed, like)
        except (OSError, SafetensorError, KeyError, ValueError, TypeError) as error:
            logger.warning("Keys and values in %s are not used and made again: %s", path, error)
            self._count(refused=1)
            return None
        self._count(disk_hits=1, bytes_read=packed.nbytes)
        self._memory.put(digest, packed)
        return block

    def put(self, digest: str, block: Block, like: Layers) -> Block:
        """Keep a block.

        Returns:
            It as it is kept, rounded where it is packed into less.
        """
        packed = pack(block, self._dtype)
        self._count(made=1)
        self._memory.put(digest, packed)
        if self.folder is not None:
            self._write(self._path(digest), digest, packed)
        return unpack(packed, like)

    def clear(self) -> None:
        """Forget what is in memory; what is on disk stays."""
        self._memory.clear()

    def report(self) -> BlockReport:
        """Counts since it was made."""
        with self._lock:
            return replace(self._counts, bytes_in_memory=self._memory.nbytes)

    def size(self, digest: str) -> int:
        """Bytes of a kept block: of its file where there is a folder, else in memory; 0 where it is not kept."""
        if self.folder is not None:
            path = self._path(digest)
            return path.stat().st_size if path.is_file() else 0
        packed = self._memory.get(digest)
        return 0 if packed is None else packed.nbytes

    def _count(self, **more: int) -> None:
        with self._lock:
            self._counts = replace(self._counts, **{n: getattr(self._counts, n) + v for n, v in more.items()})

    def _path(self, digest: str) -> Path:
        assert self.folder is not None
        # A digest is whatever a Content says it is: no part of a path comes from there.
        return self.folder / f"{hashlib.sha256(digest.encode()).hexdigest()[:32]}.safetensors"

    def _read(self, path: Path, digest: str) -> PackedBlock:
        """Read a file, memory-mapped.

        Raises:
            ValueError: It is of something else, or not what was written.
        """
        from safetensors import safe_open

        with safe_open(path, framework="pt") as stored:
            said = stored.metadata() or {}
            if said.get("settings") != self._settings or said.get("digest") != digest:
                raise ValueError("it belongs to another candidate, model or setting")
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118 - no mapping
        if said.get("checksum") != _checksum(tensors):
            raise ValueError("its checksum is wrong")
        facts = json.loads(said["facts"])
        return PackedBlock(tensors, BlockFacts(tuple(map(int, facts["span"])), int(facts["end"]), int(facts["cut"])))

    def _write(self, path: Path, digest: str, packed: PackedBlock) -> None:
        """Write a file; it appears whole or not at all. A disk that is full is no reason to stop."""
        from safetensors import SafetensorError
        from safetensors.torch import save_file

        tensors = {name: t.cpu().contiguous() for name, t in packed.tensors.items()}
        metadata = {
            "settings": self._settings,
            "digest": digest,
            "facts": json.dumps(asdict(packed.facts)),
            "checksum": _checksum(tensors),
        }
        try:
            with replacing(path) as temporary:
                save_file(tensors, temporary, metadata)
        except (OSError, SafetensorError) as error:
            logger.warning("Keys and values cannot be kept in %s: %s", self.folder, error)
        else:
            self._count(bytes_written=packed.nbytes)


def _checksum(tensors: dict[str, torch.Tensor]) -> str:
    """Of all bytes: safetensors notices a file that is cut off, not one whose bytes have changed."""
    import torch

    total = 0
    for name in sorted(tensors):
        data: Any = tensors[name].reshape(-1).view(torch.uint8).numpy()
        total = zlib.crc32(data, zlib.crc32(name.encode(), total))
    return f"{total:08x}"
