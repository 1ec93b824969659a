"""The way of a batch to the learner, and what guards a slot, against fake streams.

The fake device does nothing until it is told to, so that what would go wrong on a busy GPU goes
wrong here: a host slot refilled while its copy is queued, a device slot overwritten while it is
read.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch
from fake_lane import FakeEvent, FakeLane

from fastdqn.lanes import CpuLane
from fastdqn.networks import empty_stacks
from fastdqn.replay import ReplayMemory
from fastdqn.staging import Gatherer, InlineGatherer, Staging, make_gatherer


class CountingSampler:
    """Each batch holds its own number everywhere."""

    def __init__(self) -> None:
        self.batches = 0

    def sample_into(self, *arrays: np.ndarray[Any, Any]) -> None:
        self.batches += 1
        for array in arrays:
            array[...] = self.batches


def make_staging(lane: Any, slots: int = 2, gatherer: Gatherer | None = None) -> Staging:
    return Staging(
        gatherer or InlineGatherer(CountingSampler().sample_into),
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
        append(memory, step, frames())
    return memory


def append(memory: ReplayMemory, step: int, frames: np.ndarray[Any, Any] | None = None) -> None:
    if frames is None:
        frames = np.full((1, *memory.frame_shape), step, memory.dtype)
    no = np.array([False])
    memory.append(np.array([step]), np.array([step / 4]), frames, no, no)


@pytest.mark.parametrize("threads", [0, 1, 2, 4])
@pytest.mark.parametrize(
    ("stack", "frame_shape", "dtype"), [(4, (84, 84), "uint8"), (1, (4,), "float32")]
)
def test_on_a_cpu_batches_are_the_memorys_own_and_nothing_is_copied(
    stack: int, frame_shape: tuple[int, ...], dtype: str, threads: int
) -> None:
    """For every number of threads, however many batches are asked for ahead."""
    memory = filled_memory(stack, frame_shape, dtype)
    twin = filled_memory(stack, frame_shape, dtype)
    staging = Staging(
        make_gatherer(memory, threads),
        CpuLane(),
        batch_size=40,
        stack=stack,
        frame_shape=frame_shape,
        dtype=dtype,
    )
    places = set()
    for ahead in (0, 1, 2, 3, 7):
        staging.prefetch(ahead)
        for _ in range(max(ahead, 1)):
            expected = twin.sample(40)
            with staging.batch() as batch:
                for name in ("states", "actions", "rewards", "discounts", "next_states"):
                    assert np.array_equal(getattr(batch, name).numpy(), getattr(expected, name))
                places.add(batch.states.data_ptr())
        append(memory, ahead)  # nothing is in flight any more
        append(twin, ahead)
    assert len(places) == 2  # two slots, used in turn
    staging.close()


class EagerGatherer:
    """Writes to a slot at once when it is submitted: the earliest that a thread could."""

    def __init__(self) -> None:
        self.submitted = 0
        self.waited = 0

    def submit(self, *arrays: np.ndarray[Any, Any]) -> None:
        self.submitted += 1
        for array in arrays:
            array[...] = self.submitted

    def wait(self) -> None:
        assert self.waited < self.submitted
        self.waited += 1

    def close(self) -> None:
        pass


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("lane_type", ["cpu", "fake"])
def test_no_slot_is_given_away_that_is_still_read(slots: int, lane_type: str) -> None:
    lane = CpuLane() if lane_type == "cpu" else FakeLane()
    gatherer = EagerGatherer()
    staging = make_staging(lane, slots, gatherer)
    seen: list[float] = []
    for count in (1, 5, 2):
        staging.prefetch(count)
        for _ in range(count):
            with staging.batch() as batch:
                if isinstance(lane, FakeLane):
                    lane.put("compute", lambda part=batch.rewards: seen.append(part[0].item()))
                else:
                    seen.append(batch.rewards[0].item())
    if isinstance(lane, FakeLane):
        lane.run_all()
    assert seen == [1, 2, 3, 4, 5, 6, 7, 8]
    assert gatherer.submitted == gatherer.waited == 8  # none ahead that nobody asked for


def test_with_two_slots_the_next_batch_is_gathered_while_one_is_learned_from() -> None:
    gatherer = EagerGatherer()
    staging = make_staging(CpuLane(), 2, gatherer)
    staging.prefetch(4)
    assert gatherer.submitted == 2
    ahead = []
    for _ in range(4):
        with staging.batch():
            ahead.append(gatherer.submitted - gatherer.waited)
    assert ahead == [1, 1, 1, 0]


def test_a_batch_that_cannot_be_gathered_does_not_shift_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gatherer = EagerGatherer()
    staging = make_staging(CpuLane(), 2, gatherer)
    staging.prefetch(3)
    whole = gatherer.wait

    def damaged() -> None:
        whole()
        raise ValueError("damaged frame")

    monkeypatch.setattr(gatherer, "wait", damaged)
    with pytest.raises(ValueError, match="damaged"), staging.batch():
        pass
    monkeypatch.setattr(gatherer, "wait", whole)
    for number in (2, 3):
        with staging.batch() as batch:
            assert batch.rewards.tolist() == [number] * 3


def test_the_wait_for_a_batch_is_measured() -> None:
    class Slow(CountingSampler):
        def sample_into(self, *arrays: np.ndarray[Any, Any]) -> None:
            time.sleep(0.02)

    staging = make_staging(CpuLane(), 2, InlineGatherer(Slow().sample_into))
    staging.prefetch(2)
    assert staging.wait_seconds == 0
    for _ in range(2):
        with staging.batch():
            time.sleep(0.2)
    assert 0.04 <= staging.wait_seconds < 0.2


def test_stacks_of_images_lie_channels_last() -> None:
    stacks = empty_stacks(5, 4, (84, 80), np.uint8)
    assert stacks.shape == (5, 4, 84, 80)
    assert stacks.dtype == torch.uint8
    assert stacks.is_contiguous(memory_format=torch.channels_last)
    assert empty_stacks(5, 2, (3,), np.float32).is_contiguous()


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_batches_arrive_whole_on_a_busy_cuda_device() -> None:
    from fastdqn.lanes import make_lane

    device = torch.device("cuda")
    staging = make_staging(make_lane(device))
    sums = []
    for _ in range(50):
        with staging.batch() as batch:
            torch.cuda._sleep(2_000_000)  # hold the compute stream busy
            sums.append(torch.stack([part.double().mean() for part in batch]))
    expected = torch.arange(1, 51, dtype=torch.float64).unsqueeze(1).expand(50, 5)
    assert torch.equal(torch.stack(sums).cpu(), expected)
