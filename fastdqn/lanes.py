"""Queues of work on a device, and the points in them that others wait for.

Work for a GPU is queued: the host goes on before it is done. A lane names the two queues that the
trainer uses, and events order them. On a CPU work is done when its call returns, and the same code
runs with events that nobody has to wait for.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

__all__ = ["CpuLane", "CudaLane", "Event", "Lane", "copy_all", "make_lane"]


def copy_all(sources: Sequence[Tensor], targets: Sequence[Tensor]) -> None:
    """Copy each source to its target, without waiting, but for what is its own target."""
    for source, target in zip(sources, targets, strict=True):
        if source is not target:
            target.copy_(source, non_blocking=True)


class Event(Protocol):
    """A point in a stream's work to wait for. Before it is recorded nobody waits."""

    def synchronize(self) -> None:
        """Hold the host until the work before the event is done."""


class Lane(Protocol):
    """Two queues of work on a device: copies from the host, and the computing itself."""

    pinned: bool

    def event(self) -> Event:
        """A new event, not yet recorded."""

    def device_tensor(self, host: Tensor) -> Tensor:
        """A tensor on the device to copy `host` to; `host` itself where there is no copy."""

    def queue_copying(self, work: Callable[[], None]) -> None:
        """Put work on the copying queue: copies to the device, and what goes with them."""

    def record_copied(self, event: Event) -> None:
        """Put `event` behind the copies queued so far."""

    def record_computed(self, event: Event) -> None:
        """Put `event` behind the computing queued so far."""

    def copy_waits_for(self, event: Event) -> None:
        """Later copies begin after `event`."""

    def compute_waits_for(self, event: Event) -> None:
        """Later computing begins after `event`."""


class _Done:
    """An event of work that is done when it is queued."""

    def synchronize(self) -> None:
        pass


class CpuLane:
    """No queues: work on a CPU is done when its call returns."""

    pinned = False

    def event(self) -> Event:
        return _Done()

    def device_tensor(self, host: Tensor) -> Tensor:
        return host

    def queue_copying(self, work: Callable[[], None]) -> None:
        work()

    def record_copied(self, event: Event) -> None:
        pass

    def record_computed(self, event: Event) -> None:
        pass

    def copy_waits_for(self, event: Event) -> None:
        pass

    def compute_waits_for(self, event: Event) -> None:
        pass


class CudaLane:
    """A copy stream beside the stream that is current where the methods are called."""

    pinned = True

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._copies = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def event(self) -> Event:
        return torch.cuda.Event()  # type: ignore[no-untyped-call]

    def device_tensor(self, host: Tensor) -> Tensor:
        return torch.empty_like(host, device=self._device, pin_memory=False)

    def queue_copying(self, work: Callable[[], None]) -> None:
        with torch.cuda.stream(self._copies):
            work()

    def record_copied(self, event: Any) -> None:
        event.record(self._copies)

    def record_computed(self, event: Any) -> None:
        event.record(torch.cuda.current_stream(self._device))

    def copy_waits_for(self, event: Any) -> None:
        self._copies.wait_event(event)

    def compute_waits_for(self, event: Any) -> None:
        torch.cuda.current_stream(self._device).wait_event(event)


def make_lane(device: torch.device) -> Lane:
    """The lane to `device`."""
    return CudaLane(device) if device.type == "cuda" else CpuLane()
