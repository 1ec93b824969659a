"""Batches by the slots of their frames: the same draws, rows and frames as batches of frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastdqn.replay import ReplayMemory

SHAPE = (5, 3)


class Mirror:
    """A copy of every stored frame, kept as `newest_slots` says where each goes."""

    def __init__(self, memory: ReplayMemory) -> None:
        self.memory = memory
        self.frames = np.zeros((memory.capacity + 1, *SHAPE), np.uint8)  # the last: of zeros

    def stored(self, frames: np.ndarray[Any, Any], env_ids: Any = None) -> None:
        slots = self.memory.newest_slots(env_ids)
        self.frames[slots] = frames
        assert (slots < self.memory.capacity).all()


def play(memory: ReplayMemory, steps: int, seed: int = 0) -> Mirror:
    rng = np.random.default_rng(seed)
    mirror = Mirror(memory)
    count = memory.num_envs

    def frames(rows: int) -> np.ndarray[Any, Any]:
        return rng.integers(1, 256, (rows, *SHAPE)).astype(np.uint8)

    first = frames(count)
    memory.begin(first)
    mirror.stored(first)
    for step in range(steps):
        reached, ends = frames(count), rng.random(count) < 0.1
        rewards = rng.random(count).astype(np.float32)
        memory.append(np.full(count, step), rewards, reached, ends, np.zeros(count, np.bool_))
        mirror.stored(reached)
        if ends.any():
            first = frames(int(ends.sum()))
            memory.begin(first, np.flatnonzero(ends))
            mirror.stored(first, np.flatnonzero(ends))
    return mirror


def sample_slots(memory: ReplayMemory, rows: int, stack: int) -> dict[str, np.ndarray[Any, Any]]:
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "states": np.empty((rows, stack), np.int64),
        "next_states": np.empty((rows, stack), np.int64),
        "actions": np.empty(rows, np.int64),
        "rewards": np.empty(rows, np.float32),
        "discounts": np.empty(rows, np.float32),
        "indices": np.empty(rows, np.int64),
    }
    memory.sample_slots_into(*arrays.values())
    return arrays


@pytest.mark.parametrize("padding", ["zero", "repeat", "reject"])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize("stack", [1, 4])
@pytest.mark.parametrize("steps", [20, 200])
def test_slots_name_the_frames_of_the_batch(
    padding: Any, n_step: int, stack: int, steps: int
) -> None:
    def make() -> ReplayMemory:
        return ReplayMemory(
            90, SHAPE, num_envs=3, stack=stack, n_step=n_step, padding=padding, seed=5
        )

    memory, twin = make(), make()
    mirror = play(memory, steps)
    play(twin, steps)
    for _ in range(3):
        arrays, expected = sample_slots(memory, 50, stack), twin.sample(50)
        for name in ("actions", "rewards", "discounts", "indices"):
            np.testing.assert_array_equal(arrays[name], getattr(expected, name))
        for name in ("states", "next_states"):
            frames = mirror.frames[arrays[name]]
            np.testing.assert_array_equal(frames, getattr(expected, name), err_msg=name)


def test_the_frames_in_slots_can_be_read_back() -> None:
    memory = ReplayMemory(90, SHAPE, num_envs=3)
    mirror = play(memory, 200)
    slots = np.array([0, 89, 17, 17])
    out = np.empty((4, 1, *SHAPE), np.uint8)
    memory.frames_into(out, slots)
    np.testing.assert_array_equal(out[:, 0], mirror.frames[slots])
    with pytest.raises(IndexError, match="slot 90 holds no frame"):
        memory.frames_into(out, [0, 1, 2, 90])
    with pytest.raises(IndexError, match="slot 0 holds no frame"):
        ReplayMemory(90, SHAPE).frames_into(out, [0, 0, 0, 0])


def test_the_newest_slot_of_an_environment() -> None:
    memory = ReplayMemory(10, SHAPE, num_envs=2, stack=1)
    assert memory.newest_slots().tolist() == [-1, -1]
    memory.begin(np.zeros((1, *SHAPE), np.uint8), [1])
    assert memory.newest_slots().tolist() == [-1, 0]
    memory.begin(np.zeros((1, *SHAPE), np.uint8), [0])
    assert memory.newest_slots([0]).tolist() == [1]
    for _ in range(10):  # overwrites what the other environment has
        memory.begin(np.zeros((1, *SHAPE), np.uint8), [0])
    assert memory.newest_slots().tolist() == [1, -1]
    with pytest.raises(IndexError, match="environment 2"):
        memory.newest_slots([2])


def test_wrong_arrays_are_refused() -> None:
    memory = ReplayMemory(90, SHAPE, num_envs=3, stack=2)
    play(memory, 10)
    columns = (np.empty(4, np.int64), np.empty(4, np.float32), np.empty(4, np.float32))
    whole = np.empty((4, 2), np.int64)
    for wrong, error in (
        (np.empty((4, 3), np.int64), ValueError),
        (np.empty(4, np.int64), ValueError),
        (np.empty((4, 2), np.int32), TypeError),
        (np.empty((2, 4), np.int64).T, ValueError),
    ):
        with pytest.raises(error, match="next_state_slots"):
            memory.sample_slots_into(whole, wrong, *columns, np.empty(4, np.int64))
