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
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import DTypeLike, NDArray
from torch import Tensor

from fastdqn.device_replay import DeviceRing
from fastdqn.lanes import Event, Lane, copy_all
from fastdqn.networks import empty_stacks
from fastdqn.replay import Prefetcher, ReplayMemory

__all__ = [
    "Gatherer",
    "InlineGatherer",
    "Staging",
    "Transitions",
    "make_gatherer",
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


Sample = Callable[
    [
        NDArray[Any],
        NDArray[Any],
        NDArray[np.int64],
        NDArray[np.float32],
        NDArray[np.float32],
        NDArray[np.int64],
    ],
    None,
]
"""`ReplayMemory.sample_into`, or `sample_slots_into`."""


class InlineGatherer:
    """Gathers a batch when it is waited for, in the caller's own time.

    The same batches as a `Prefetcher`'s where nothing is written to the memory in between.
    """

    def __init__(self, sample: Sample) -> None:
        self._sample = sample
        self._submitted: deque[Arrays] = deque()

    def submit(self, *arrays: Any) -> None:
        """See `Gatherer`."""
        self._submitted.append(arrays)

    def wait(self) -> None:
        """See `Gatherer`."""
        self._sample(*self._submitted.popleft())

    def close(self) -> None:
        """See `Gatherer`."""
        self._submitted.clear()


def make_gatherer(memory: ReplayMemory, threads: int) -> Gatherer:
    """Gathers in this many threads beside the caller; with none, when a batch is waited for."""
    return Prefetcher(memory, threads) if threads else InlineGatherer(memory.sample_into)


@dataclass
class _Slot:
    """One batch's place on both sides."""

    host: tuple[Tensor, ...]
    """What the gatherer fills; `arrays` are the same memory, and the indices behind it."""
    arrays: Arrays
    device: tuple[Tensor, ...]
    """What `host` is copied to."""
    batch: Transitions
    """What the learner takes: tensors of `device`, and stacks that were gathered there."""
    copied: Event
    """Host tensors may be refilled."""
    computed: Event
    """Device tensors may be overwritten."""


class Staging:
    """Batches of one memory, in slots that are used in turn.

    With two slots the next batch is gathered and copied while an update still reads the last one.
    With a `ring` the gatherer gives the slots of frames in place of stacks of frames, which are
    then gathered on the device.
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
        ring: DeviceRing | None = None,
    ) -> None:
        self._gatherer = gatherer
        self._lane = lane
        self._ring = ring

        def make_slot() -> _Slot:
            def empty(dtype: torch.dtype, *shape: int) -> Tensor:
                return torch.empty(batch_size, *shape, dtype=dtype, pin_memory=lane.pinned)

            def stacks() -> Tensor:
                if ring is not None:
                    return empty(torch.int64, stack)
                return empty_stacks(batch_size, stack, frame_shape, dtype, pinned=lane.pinned)

            host = (
                stacks(),
                stacks(),
                empty(torch.int64),
                empty(torch.float32),
                empty(torch.float32),
            )
            columns = [part.numpy() for part in host]
            arrays = (
                *(columns[0], columns[1], columns[2], columns[3], columns[4]),
                np.empty(batch_size, np.int64),
            )
            device = tuple(lane.device_tensor(part) for part in host)
            states, next_states, actions, rewards, discounts = device
            if ring is not None:
                states, next_states = (ring.empty_stacks(batch_size, stack) for _ in range(2))
            batch = Transitions(states, actions, rewards, discounts, next_states)
            slot = _Slot(host, arrays, device, batch, lane.event(), lane.event())
            # The device's memory may be recycled from work that is still queued for computing.
            lane.record_computed(slot.computed)
            return slot

        self._all = [make_slot() for _ in range(slots)]
        self._free = deque(self._all)  # host tensors that nothing writes; oldest use first
        self._submitted: deque[_Slot] = deque()
        self._wanted = 0  # batches asked for that no slot was free for yet
        self.wait_seconds = 0.0
        """Time that the host has spent waiting for batches to be gathered, in all."""

    def stored(self, frames: NDArray[Any], env_ids: NDArray[np.int64] | None = None) -> None:
        """The memory has stored these frames [N, *frame_shape] as its newest: to be called after
        each `begin` and `append`, when every batch asked for has been taken."""
        if self._ring is not None:
            if self._submitted or self._wanted:
                raise RuntimeError("frames were stored while batches that show older ones are due")
            self._ring.stored(frames, env_ids)

    def _deliver(self, slot: _Slot) -> None:
        copy_all(slot.host, slot.device)
        if self._ring is not None:
            state_slots, next_state_slots = slot.device[:2]
            self._ring.gather_into(slot.batch.states, state_slots)
            self._ring.gather_into(slot.batch.next_states, next_state_slots)

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
            lane.queue_copying(partial(self._deliver, slot))
            lane.record_copied(slot.copied)
            # While this batch is learned from: the next, into a slot that nothing reads any more.
            self._submit()
            lane.compute_waits_for(slot.copied)
            yield slot.batch
        finally:
            lane.record_computed(slot.computed)
            self._free.append(slot)

    def close(self) -> None:
        """Wait until nothing is gathered or copied any more: only then may the slots' memory go."""
        self._gatherer.close()
        if self._ring is not None:
            self._ring.close()
        for slot in self._all:
            slot.copied.synchronize()
