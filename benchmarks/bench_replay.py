"""What the replay memory costs: microseconds to append and to sample, bytes to store a frame.

The plain numpy ring of the baseline is filled with the same transitions and is both the reference
for answers and the array that the plain copies are taken from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import harness
import numpy as np
import numpy.typing as npt
from baseline import Batch, FrameRing
from harness import OURS, Contender, Effort, Requirement, Row, agree

from fastdqn.machine import available_bytes
from fastdqn.replay import ReplayMemory

__all__ = ["append", "memory", "sample"]

FRAME_BYTES = 84 * 84
STACK = 4
BATCH = 32


class Script:
    """Random frames, actions, rewards and ends, the same for every memory that is filled by it."""

    def __init__(self) -> None:
        generator = np.random.default_rng(7)
        self.frames = generator.integers(256, size=(997, 1, 84, 84), dtype=np.uint8)
        self.actions = generator.integers(4, size=(4099, 1))
        self.rewards = generator.integers(-1, 2, size=(4099, 1)).astype(np.float32)
        # A lost game about every 200 steps, every fourth one cut by a limit instead.
        ends = generator.random((4099, 1)) < 1 / 200
        cuts = generator.random((4099, 1)) < 1 / 4
        self.terminated = ends & ~cuts
        self.truncated = ends & cuts

    def fill(self, frames: int, memory: ReplayMemory | None, ring: FrameRing | None) -> None:
        """Appends transitions until `frames` more frames are stored."""
        stored, begins, turn = 0, True, 0
        while stored < frames:
            frame = self.frames[stored % len(self.frames)]
            if begins:
                if memory is not None:
                    memory.begin(frame)
                if ring is not None:
                    ring.begin(frame[0])
            else:
                at = turn % len(self.actions)
                if memory is not None:
                    memory.append(
                        self.actions[at],
                        self.rewards[at],
                        frame,
                        self.terminated[at],
                        self.truncated[at],
                    )
                if ring is not None:
                    ring.append(
                        int(self.actions[at, 0]),
                        float(self.rewards[at, 0]),
                        frame[0],
                        bool(self.terminated[at, 0]),
                    )
                turn += 1
            begins = not begins and bool(self.terminated[at, 0] or self.truncated[at, 0])
            stored += 1


def sample(effort: Effort) -> Iterator[Row]:
    """Microseconds for a batch of 32 transitions out of a full memory."""
    for capacity in effort.capacities:
        title = f"sample({BATCH}) of {STACK}-stacks from {capacity:,} frames"
        row = Row("sample", title, "µs")
        needed = 2 * capacity * FRAME_BYTES
        if needed < 0.9 * available_bytes():
            measure_sample(row, capacity, effort)
        else:
            row.notes.append(f"not measured: needs {needed / 1e9:.1f} GB of memory")
        row.require_ratio(COPY, 1.3)
        yield row


COPY = "limit: a plain copy of the same bytes"


def measure_sample(row: Row, capacity: int, effort: Effort) -> None:
    """Fills both memories beyond their capacity and measures."""
    before = harness.huge_page_bytes()
    memory = ReplayMemory(capacity)
    Script().fill(capacity + 1000, memory, None)
    between = harness.huge_page_bytes()
    ring = FrameRing(capacity)
    Script().fill(capacity + 1000, None, ring)
    after = harness.huge_page_bytes()
    check_sample(memory, ring)
    contenders = [
        Contender(OURS, harness.repeat(lambda: memory.sample(BATCH), 20)),
        Contender("fastdqn, into the trainer's arrays", harness.repeat(into(memory), 20)),
        Contender(COPY, harness.repeat(plain_copy(ring.frames), 20)),
        Contender("plain numpy", harness.repeat(lambda: ring.sample(BATCH), 20)),
    ]
    harness.measure(row, contenders, seconds=effort.seconds)
    row.notes += [
        f"a copy is {BATCH} x {STACK + 1} frames = {BATCH * (STACK + 1) * FRAME_BYTES:,} bytes "
        "from random places of plain numpy's frames, into one array that is used again",
        f"in huge pages: {(between - before) / ring.frames.nbytes:.0%} of our frames' size, "
        f"{(after - between) / ring.frames.nbytes:.0%} of the array that is copied from",
    ]


def append(effort: Effort) -> Iterator[Row]:
    """Microseconds for one transition into a full memory."""
    capacity = max(size for size in effort.capacities if size <= 100_000)
    row = Row("append", f"append of one step to a full memory of {capacity:,} frames", "µs")
    script = Script()
    memory, ring = ReplayMemory(capacity), FrameRing(capacity)
    script.fill(capacity + 1000, memory, ring)
    check_sample(memory, ring)
    memory.begin(script.frames[0])
    ring.begin(script.frames[0, 0])
    target = np.zeros_like(ring.frames)
    copy = "limit: a plain copy of its frame"
    ends = np.zeros(1, np.bool_)
    calls = [
        (script.actions[i], script.rewards[i], frame, ends, ends)
        for i, frame in enumerate(script.frames)
    ]
    state = {"slot": 0}

    def ours() -> float:
        put = memory.append
        for call in calls:
            put(*call)
        return len(calls)

    def copied() -> float:
        slot = state["slot"]
        for call in calls:
            target[slot] = call[2]
            slot = slot + 1 if slot + 1 < capacity else 0
        state["slot"] = slot
        return len(calls)

    def plain() -> float:
        for action, reward, frame, terminated, _ in calls:
            ring.append(int(action[0]), float(reward[0]), frame[0], bool(terminated[0]))
        return len(calls)

    contenders = [Contender(OURS, ours), Contender(copy, copied), Contender("plain numpy", plain)]
    harness.measure(row, contenders, seconds=effort.seconds)
    row.requirements.append(
        Requirement(
            "append: at most 5 µs a call beyond copying its frame",
            lambda: row.differences(copy),
            5.0,
            at_most=True,
            unit="µs",
        )
    )
    yield row


def memory(effort: Effort) -> Iterator[Row]:
    """Bytes of a stored frame, everything that belongs to it included."""
    capacity = 1_000_000
    row = Row("memory", f"Memory of a replay of {capacity:,} frames of 84 x 84", "µs")
    if capacity * FRAME_BYTES < 0.8 * available_bytes():
        bytes_each = ReplayMemory(capacity).nbytes / capacity
        row.notes.append(
            f"{bytes_each:,.1f} bytes a frame, {bytes_each - FRAME_BYTES:,.1f} of them beside its "
            f"{FRAME_BYTES:,} pixels: {bytes_each * capacity / 1e9:.3f} GB"
        )
        figures = [bytes_each]
    else:
        row.notes.append("not measured: needs 7.1 GB of free memory")
        figures = []
    row.requirements.append(
        Requirement(
            f"memory: at most {FRAME_BYTES:,} + 40 bytes a frame",
            lambda: figures,
            FRAME_BYTES + 40,
            at_most=True,
            unit="bytes",
        )
    )
    yield row


def check_sample(memory: ReplayMemory, ring: FrameRing) -> None:
    """The same transitions can be drawn, they read the same, and a sample is one of them."""
    valid = np.flatnonzero(ring.valid(np.arange(ring.capacity)))
    agree("sample: what can be drawn", np.array_equal(memory.valid_indices(), valid))
    indices = np.random.default_rng(3).choice(valid, 2000)
    # Both ends of the ring and every kind of episode end are among these.
    near = np.concatenate([valid[:50], valid[-50:], valid[np.abs(valid - ring.newest) < 50]])
    for chosen in (indices, near):
        same_batch(memory.gather(chosen), ring.gather(chosen))
    batch = memory.sample(BATCH)
    agree("sample: indices", np.isin(batch.indices, valid).all())
    same_batch(batch, ring.gather(batch.indices))


def same_batch(ours: Any, theirs: Batch) -> None:
    """Every part of two batches is equal, bit by bit."""
    names = ("states", "actions", "rewards", "discounts", "next_states")
    for name, expected in zip(names, theirs, strict=True):
        agree(f"sample: {name}", np.array_equal(getattr(ours, name), expected))


def into(memory: ReplayMemory) -> Callable[[], object]:
    """The trainer's way: channels-last into arrays that are used again."""
    states, next_states = (
        np.empty((BATCH, 84, 84, STACK), np.uint8).transpose(0, 3, 1, 2) for _ in range(2)
    )
    actions, indices = (np.empty(BATCH, np.int64) for _ in range(2))
    rewards, discounts = (np.empty(BATCH, np.float32) for _ in range(2))
    arrays = (states, next_states, actions, rewards, discounts, indices)
    return lambda: memory.sample_into(*arrays)


def plain_copy(frames: npt.NDArray[np.uint8]) -> Callable[[], object]:
    """Copies 32 runs of 5 frames from random places; the places are drawn beforehand."""
    flat = frames.reshape(len(frames), -1)
    starts = np.random.default_rng(5).integers(len(flat) - STACK, size=(4096, BATCH, 1))
    places = cycle((starts + np.arange(STACK + 1)).reshape(4096, -1))
    out = np.empty((BATCH * (STACK + 1), FRAME_BYTES), np.uint8)
    return lambda: np.take(flat, next(places), axis=0, out=out, mode="clip")
