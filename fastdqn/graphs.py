"""Work on a GPU that is recorded once and then replayed as a whole.

An update is some hundred small kernels: launching them one by one takes the host longer than
computing them takes the GPU. A CUDA graph launches them all at once. It replays the same kernels on
the same memory, so it fits work that is the same every time and touches the same tensors: whoever
calls it keeps its inputs in place. On a CPU nothing is recorded.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["CudaRecorder", "Recorder", "Replayed", "replayed"]

_log = logging.getLogger(__name__)

Work = Callable[[], object]


class Recorder(Protocol):
    """Makes graphs of a device's work."""

    def warm_up(self, work: Work) -> None:
        """Do the work once, in the way in which it will be recorded."""

    def record(self, work: Work) -> Work:
        """Record the work without doing it: what is returned does it. `RuntimeError` where the
        device or the work does not allow that; nothing was done then."""


class CudaRecorder:
    """Records on a stream of its own; replays on whichever is current.

    All its graphs share one pool of memory, so they may never run side by side, and what one leaves
    in memory that it allocated is good until the next runs.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool: Any = None

    def warm_up(self, work: Work) -> None:
        """See `Recorder`. Libraries set themselves up at first use, which cannot be recorded."""
        current = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream):
            work()
        current.wait_stream(self._stream)

    def record(self, work: Work) -> Work:
        """See `Recorder`."""
        graph = torch.cuda.CUDAGraph()
        current = torch.cuda.current_stream(self._device)
        # Other threads may go on using CUDA meanwhile: they do not touch the recording stream.
        recording = torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        )
        try:
            with torch.cuda.device(self._device), recording:
                work()
        except BaseException:
            torch.cuda.set_stream(current)  # a failed recording leaves its own stream current
            raise
        if self._pool is None:
            self._pool = graph.pool()
        return graph.replay


class Replayed:
    """A function of tensors that is recorded for each set of tensors it is called with.

    Its first `warm_ups` calls are done as they are, and count: nothing is done twice. A function
    that cannot be recorded is called as it is from then on, and one line in the log says so. What
    it does beyond the device, such as counting on the host, is done only when it is recorded.
    """

    def __init__(
        self, function: Callable[..., object], recorder: Recorder, *, warm_ups: int = 3
    ) -> None:
        self._function = function
        self._recorder: Recorder | None = recorder
        self._warm_ups = warm_ups
        # The tensors are kept: their memory must not be given to others while graphs use it.
        self._graphs: dict[tuple[int, ...], tuple[Work, tuple[Tensor, ...]]] = {}

    @property
    def recorded(self) -> int:
        """How many sets of tensors there is a graph for."""
        return len(self._graphs)

    def __call__(self, *tensors: Tensor) -> None:
        """Do the function's work on these tensors, which are fewer than a handful of sets."""
        recorder = self._recorder
        if recorder is None:
            self._function(*tensors)
            return
        key = tuple(tensor.data_ptr() for tensor in tensors)
        if key not in self._graphs:
            if self._warm_ups:
                self._warm_ups -= 1
                recorder.warm_up(lambda: self._function(*tensors))
                return
            try:
                replay = recorder.record(lambda: self._function(*tensors))
            except RuntimeError as error:
                reason = str(error).partition("\n")[0]
                _log.warning("CUDA graphs are off, which costs speed only: %s", reason)
                self._recorder = None
                self._graphs.clear()
                self._function(*tensors)
                return
            self._graphs[key] = replay, tensors
        self._graphs[key][0]()


def replayed(function: Callable[..., object], device: torch.device) -> Callable[..., object]:
    """The function, as a CUDA graph where the device is one that has them."""
    return Replayed(function, CudaRecorder(device)) if device.type == "cuda" else function
