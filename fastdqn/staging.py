"""The way of a batch from the C++ sampler to the learner's device.

The sampler writes straight into torch's host tensors: Python copies nothing. Where the memory has
threads for it, batches that will be needed are gathered while the learner or the actor works; which
transitions they hold is decided when they are asked for, so that time changes nothing. On CUDA host
tensors are page-locked, a stream of its own carries them to the device, and events guard both ends
of a slot: host tensors are not refilled while their copy is in flight, device tensors are not
overwritten while an update still reads them. On a CPU the same path runs with streams and events
that do nothing, and host and device tensors are the same.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from fastdqn.networks import empty_stacks
from fastdqn.replay import Prefetcher, ReplayMemory

__all__ = [
    "CpuLane",
    "CudaLane",
    "Gatherer",
    "InlineGatherer",
    "Lane",
    "Staging",
    "Transitions",
    "make_gatherer",
    "make_lane",
]


class Transitions(NamedTuple):
    """A batch, in the order in which a learner takes it."""

    states: Tensor  # [B, stack, *frame_shape]
    actions: Tensor  # [B] int64
    rewards: Tensor  # [B] float32
    discounts: Tensor  # [B] float32
    next_states: Tensor  # [B, stack, *frame_shape]


Arrays = tuple[
    NDArray[Any],
    NDArray[Any],
    NDArray[np.int64],
    NDArray[np.float32],
    NDArray[np.float32],
    NDArray[np.int64],
]
"""A batch's host memory, in the order of `ReplayMemory.sample_into`."""


class Gatherer(Protocol):
    """Draws batches when they are submitted, and has them there when they are waited for."""

    def submit(
        self,
        states: NDArray[Any],
        next_states: NDArray[Any],
        actions: NDArray[np.int64],
        rewards: NDArray[np.float32],
        discounts: NDArray[np.float32],
        indices: NDArray[np.int64],
    ) -> None:
        """Draw a batch into the arrays, which are this call's until `wait` returns for it."""

    def wait(self) -> None:
        """Return when the oldest batch submitted, and not waited for, is there."""

    def close(self) -> None:
        """Touch no array any more."""


class Sampler(Protocol):
    """What `InlineGatherer` needs of a replay memory."""

    def sample_into(
        self,
        states: NDArray[Any],
        next_states: NDArray[Any],
        actions: NDArray[np.int64],
        rewards: NDArray[np.float32],
        discounts: NDArray[np.float32],
        indices: NDArray[np.int64],
    ) -> None:
        """Fill the arrays with a batch."""


class InlineGatherer:
    """Gathers a batch when it is waited for, in the caller's own time.

    The same batches as a `Prefetcher`'s where nothing is written to the memory in between.
    """

    def __init__(self, memory: Sampler) -> None:
        self._memory = memory
        self._submitted: deque[Arrays] = deque()

    def submit(self, *arrays: Any) -> None:
        """See `Gatherer`."""
        self._submitted.append(arrays)

    def wait(self) -> None:
        """See `Gatherer`."""
        self._memory.sample_into(*self._submitted.popleft())

    def close(self) -> None:
        """See `Gatherer`."""
        self._submitted.clear()


def make_gatherer(memory: ReplayMemory, threads: int) -> Gatherer:
    """Gathers in this many threads beside the caller; with none, when a batch is waited for."""
    return Prefetcher(memory, threads) if threads else InlineGatherer(memory)


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

    def copy(self, host: Sequence[Tensor], device: Sequence[Tensor]) -> None:
        """Queue copies on the copying queue."""

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

    def copy(self, host: Sequence[Tensor], device: Sequence[Tensor]) -> None:
        pass

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

    def copy(self, host: Sequence[Tensor], device: Sequence[Tensor]) -> None:
        with torch.cuda.stream(self._copies):
            for source, target in zip(host, device, strict=True):
                target.copy_(source, non_blocking=True)

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


@dataclass
class _Slot:
    """One batch's place on both sides."""

    host: Transitions
    arrays: Arrays
    """The host tensors as numpy arrays."""
    device: Transitions
    copied: Event
    """Host tensors may be refilled."""
    computed: Event
    """Device tensors may be overwritten."""


class Staging:
    """Batches of one memory, in slots that are used in turn.

    With two slots the next batch is gathered and copied while an update still reads the last one.
    """

    def __init__(
        self,
        gatherer: Gatherer,
        lane: Lane,
        *,
        batch_size: int,
        stack: int,
        frame_shape: Sequence[int],
        dtype: DTypeLike,
        slots: int = 2,
    ) -> None:
        self._gatherer = gatherer
        self._lane = lane

        def make_slot() -> _Slot:
            def empty(dtype: torch.dtype) -> Tensor:
                return torch.empty(batch_size, dtype=dtype, pin_memory=lane.pinned)

            def stacks() -> Tensor:
                return empty_stacks(batch_size, stack, frame_shape, dtype, pinned=lane.pinned)

            host = Transitions(
                states=stacks(),
                actions=empty(torch.int64),
                rewards=empty(torch.float32),
                discounts=empty(torch.float32),
                next_states=stacks(),
            )
            arrays: Arrays = (
                host.states.numpy(),
                host.next_states.numpy(),
                host.actions.numpy(),
                host.rewards.numpy(),
                host.discounts.numpy(),
                np.empty(batch_size, np.int64),
            )
            device = Transitions(*(lane.device_tensor(part) for part in host))
            slot = _Slot(host, arrays, device, lane.event(), lane.event())
            # The device's memory may be recycled from work that is still queued for computing.
            lane.record_computed(slot.computed)
            return slot

        self._all = [make_slot() for _ in range(slots)]
        self._free = deque(self._all)  # host tensors that nothing writes; oldest use first
        self._submitted: deque[_Slot] = deque()
        self._wanted = 0  # batches asked for that no slot was free for yet
        self.wait_seconds = 0.0
        """Time that the host has spent waiting for batches to be gathered, in all."""

    def prefetch(self, count: int) -> None:
        """Begin to gather the next `count` batches, from what the memory holds now.

        The memory takes no new frames until they are gathered, which `count` calls of `batch` make
        sure of. `ValueError` where nothing can be drawn.
        """
        self._wanted += count
        self._submit()

    def _submit(self) -> None:
        while self._wanted and self._free:
            slot = self._free[0]
            slot.copied.synchronize()  # its last copy to the device was begun a batch ago or more
            self._gatherer.submit(*slot.arrays)
            self._submitted.append(self._free.popleft())
            self._wanted -= 1

    @contextmanager
    def batch(self) -> Iterator[Transitions]:
        """The next batch on the device, prefetched or new, valid inside the `with`.

        Computing there may be queued.
        """
        if not self._submitted:
            self.prefetch(0 if self._wanted else 1)
        slot, lane = self._submitted.popleft(), self._lane
        try:
            began = time.perf_counter()
            self._gatherer.wait()
            self.wait_seconds += time.perf_counter() - began
            lane.copy_waits_for(slot.computed)
            lane.copy(slot.host, slot.device)
            lane.record_copied(slot.copied)
            # While this batch is learned from: the next, into a slot that nothing reads any more.
            self._submit()
            lane.compute_waits_for(slot.copied)
            yield slot.device
        finally:
            lane.record_computed(slot.computed)
            self._free.append(slot)

    def close(self) -> None:
        """Wait until nothing is gathered or copied any more: only then may the slots' memory go."""
        self._gatherer.close()
        for slot in self._all:
            slot.copied.synchronize()
