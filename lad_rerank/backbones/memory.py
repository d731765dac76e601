"""A bounded memory of what is costly to make again: least recently used goes first."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


class BoundedMemory(Generic[K, V]):
    """Keeps values while they fit; threads may share one.

    Args:
        max_bytes: Bytes kept at most; 0 keeps nothing.
        size: Bytes of a value.
    """

    def __init__(self, max_bytes: int, size: Callable[[V], int]) -> None:
        self.max_bytes = max_bytes
        self._size = size
        self._values: OrderedDict[K, V] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: K) -> V | None:
        """The value of a key, or ``None``."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key]

    def put(self, key: K, value: V) -> None:
        """Keep a value, if it fits at all, and let older ones go."""
        size = self._size(value)
        with self._lock:
            if key in self._values:
                self._bytes -= self._size(self._values.pop(key))
            if size > self.max_bytes:
                return
            self._values[key] = value
            self._bytes += size
            while self._bytes > self.max_bytes:
                _, old = self._values.popitem(last=False)
                self._bytes -= self._size(old)

    def clear(self) -> None:
        """Forget everything."""
        with self._lock:
            self._values.clear()
            self._bytes = 0

    def __len__(self) -> int:
        return len(self._values)

    @property
    def nbytes(self) -> int:
        """Bytes kept now."""
        return self._bytes
