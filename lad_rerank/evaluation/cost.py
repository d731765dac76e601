"""What passes cost: time and memory, measured around them."""

from __future__ import annotations

import contextlib
import sys
import time
from types import TracebackType


class Meter:
    """Measures wall-clock time and peak memory of what runs inside ``with``.

    Attributes:
        seconds: Wall-clock time.
        peak_bytes: Most memory in use at a time, weights included: what torch had on all GPUs, or else the largest
            resident size of this process. Only Linux can forget how large a process once was; elsewhere the size
            may be that of something before. ``None`` where there is no telling.
    """

    def __init__(self) -> None:
        self.seconds = 0.0
        self.peak_bytes: int | None = None

    def __enter__(self) -> Meter:
        self._gpus = _gpus()
        _forget_peak(self._gpus)
        self._started = time.perf_counter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.seconds = time.perf_counter() - self._started
        self.peak_bytes = _peak(self._gpus) or _largest_size()


def _gpus() -> list[int]:
    """Devices that torch already uses: to ask would otherwise start CUDA."""
    import torch

    return list(range(torch.cuda.device_count())) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]


def _forget_peak(gpus: list[int]) -> None:
    import torch

    for gpu in gpus:
        torch.cuda.reset_peak_memory_stats(gpu)
    # 5 resets the peak resident size (proc_pid_clear_refs(5)); not there on other systems, refused in some containers.
    with contextlib.suppress(OSError), open("/proc/self/clear_refs", "w") as file:
        file.write("5")


def _peak(gpus: list[int]) -> int:
    import torch

    return sum(torch.cuda.max_memory_allocated(gpu) for gpu in gpus)


def _largest_size() -> int | None:
    """The largest resident size of this process, in bytes."""
    with contextlib.suppress(OSError), open("/proc/self/status") as file:
        # Not getrusage: what it says also counts what was forgotten.
        return next((1024 * int(line.split()[1]) for line in file if line.startswith("VmHWM:")), None)
    if sys.platform == "win32":
        return None
    import resource

    size = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return size if sys.platform == "darwin" else 1024 * size
