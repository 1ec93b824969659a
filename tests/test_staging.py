"""The way of a batch to the learner, and what guards a slot, against fake streams.

The fake device does nothing until it is told to, so that what would go wrong on a busy GPU goes
wrong here: a host slot refilled while its copy is queued, a device slot overwritten while it is
read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from fastdqn.networks import empty_stacks
from fastdqn.replay import ReplayMemory
from fastdqn.staging import CpuLane, Staging


class Mark:
    """One recording of an event: what waits for it is not moved by later recordings."""

    def __init__(self, done: bool) -> None:
        self.done = done


class FakeEvent:
    def __init__(self, lane: FakeLane) -> None:
        self.mark = Mark(done=True)  # nothing recorded yet
        self._lane = lane

    def synchronize(self) -> None:
        mark = self.mark
        self._lane.host_waits += not mark.done
        while not mark.done:
            self._lane.run_one("copy")


class FakeLane:
    """Two queues that stand still until something waits for them."""

    pinned = False

    def __init__(self) -> None:
        self.queues: dict[str, deque[tuple[Callable[[], bool], Callable[[], None]]]] = {
            "copy": deque(),
            "compute": deque(),
        }
        self.host_waits = 0

    def put(
        self, queue: str, do: Callable[[], None], ready: Callable[[], bool] = lambda: True
    ) -> None:
        self.queues[queue].append((ready, do))

    def run_one(self, queue: str) -> None:
        ready, do = self.queues[queue][0]
        while not ready():  # what it waits for is on the other queue
            self.run_one("compute" if queue == "copy" else "copy")
        self.queues[queue].popleft()
        do()

    def run_all(self) -> None:
        while self.queues["compute"] or self.queues["copy"]:
            self.run_one("compute" if self.queues["compute"] else "copy")

    def event(self) -> FakeEvent:
        return FakeEvent(self)

    def device_tensor(self, host: Tensor) -> Tensor:
        return torch.zeros_like(host)

    def copy(self, host: Sequence[Tensor], device: Sequence[Tensor]) -> None:
        def do() -> None:
            for source, target in zip(host, device, strict=True):
                target.copy_(source)

        self.put("copy", do)

    def _record(self, queue: str, event: FakeEvent) -> None:
        mark = event.mark = Mark(done=False)
        self.put(queue, lambda: setattr(mark, "done", True))

    def record_copied(self, event: FakeEvent) -> None:
        self._record("copy", event)

    def record_computed(self, event: FakeEvent) -> None:
        self._record("compute", event)

    def copy_waits_for(self, event: FakeEvent) -> None:
        mark = event.mark
        self.put("copy", lambda: None, lambda: mark.done)

    def compute_waits_for(self, event: FakeEvent) -> None:
        mark = event.mark
        self.put("compute", lambda: None, lambda: mark.done)


class CountingSampler:
    """Each batch holds its own number everywhere."""

    def __init__(self) -> None:
        self.batches = 0

    def sample_into(self, *arrays: np.ndarray[Any, Any]) -> None:
        self.batches += 1
        for array in arrays:
            array[...] = self.batches


def make_staging(lane: Any, slots: int = 2) -> Staging:
    return Staging(
        CountingSampler(),
        lane,
        batch_size=3,
        stack=2,
        frame_shape=(4, 4),
        dtype=np.uint8,
        slots=slots,
    )


def train(lane: FakeLane, staging: Staging, updates: int) -> list[set[float]]:
    """Queue updates that note what they read when they run."""
    seen: list[set[float]] = []
    for _ in range(updates):
        with staging.batch() as batch:
            lane.put(
                "compute",
                lambda parts=batch: seen.append({float(v) for p in parts for v in p.flatten()}),
            )
    lane.run_all()
    return seen


@pytest.mark.parametrize("slots", [1, 2, 3])
def test_every_update_reads_exactly_its_own_batch_on_a_device_that_lags(slots: int) -> None:
    lane = FakeLane()
    seen = train(lane, make_staging(lane, slots), 10)
    assert seen == [{float(number)} for number in range(1, 11)]


def test_the_host_waits_only_when_the_slots_are_used_up() -> None:
    lane = FakeLane()
    train(lane, make_staging(lane), 2)
    assert lane.host_waits == 0
    lane = FakeLane()
    train(lane, make_staging(lane), 3)
    assert lane.host_waits == 1


@pytest.mark.parametrize("guard", ["synchronize", "copy_waits_for", "compute_waits_for"])
def test_without_any_one_of_its_guards_a_batch_would_be_torn(
    guard: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Shows that the fake device is strict enough for the tests above to mean something."""
    monkeypatch.setattr(FakeEvent if guard == "synchronize" else FakeLane, guard, lambda *_: None)
    lane = FakeLane()
    staging = make_staging(lane)
    if guard == "copy_waits_for":  # copies run ahead of the computing that lags
        seen: list[float] = []
        for _ in range(3):
            with staging.batch() as batch:
                lane.put("compute", lambda parts=batch: seen.append(parts.rewards[0].item()))
            while lane.queues["copy"]:
                lane.run_one("copy")
        lane.run_all()
        assert seen != [1, 2, 3]
    else:
        assert train(lane, staging, 5) != [{float(number)} for number in range(1, 6)]


def filled_memory(stack: int, frame_shape: tuple[int, ...], dtype: str) -> ReplayMemory:
    memory = ReplayMemory(100, frame_shape, dtype, stack=stack, seed=1)
    rng = np.random.default_rng(0)

    def frames() -> np.ndarray[Any, Any]:
        return rng.integers(0, 255, (1, *frame_shape)).astype(dtype)

    memory.begin(frames())
    for step in range(60):
        memory.append(
            np.array([step]), np.array([step / 4]), frames(), np.array([False]), np.array([False])
        )
    return memory


@pytest.mark.parametrize(
    ("stack", "frame_shape", "dtype"), [(4, (84, 84), "uint8"), (1, (4,), "float32")]
)
def test_on_a_cpu_batches_are_the_memorys_own_and_nothing_is_copied(
    stack: int, frame_shape: tuple[int, ...], dtype: str
) -> None:
    memory = filled_memory(stack, frame_shape, dtype)
    twin = filled_memory(stack, frame_shape, dtype)
    staging = Staging(
        memory, CpuLane(), batch_size=8, stack=stack, frame_shape=frame_shape, dtype=dtype
    )
    places = set()
    for _ in range(6):
        expected = twin.sample(8)
        with staging.batch() as batch:
            for name in ("states", "actions", "rewards", "discounts", "next_states"):
                assert np.array_equal(getattr(batch, name).numpy(), getattr(expected, name)), name
            places.add(batch.states.data_ptr())
    assert len(places) == 2  # two slots, used in turn


def test_stacks_of_images_lie_channels_last() -> None:
    stacks = empty_stacks(5, 4, (84, 80), np.uint8)
    assert stacks.shape == (5, 4, 84, 80)
    assert stacks.dtype == torch.uint8
    assert stacks.is_contiguous(memory_format=torch.channels_last)
    assert empty_stacks(5, 2, (3,), np.float32).is_contiguous()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_batches_arrive_whole_on_a_busy_cuda_device() -> None:
    from fastdqn.staging import make_lane

    device = torch.device("cuda")
    staging = make_staging(make_lane(device))
    sums = []
    for _ in range(50):
        with staging.batch() as batch:
            torch.cuda._sleep(2_000_000)  # hold the compute stream busy
            sums.append(torch.stack([part.double().mean() for part in batch]))
    expected = torch.arange(1, 51, dtype=torch.float64).unsqueeze(1).expand(50, 5)
    assert torch.equal(torch.stack(sums).cpu(), expected)
