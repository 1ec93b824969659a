"""Threads that sample while another appends see whole rows, as they were at one moment.

Every frame is filled with one value that follows from its number and the action is the number, so
that a row put together from two moments shows.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastdqn.replay import ReplayMemory

SHAPE = (40, 40)
STACK = 4
SECONDS = 2.0


def pixel(number: Any) -> Any:
    """The value that fills frame `number`: never 0, which is padding."""
    return number * 97 % 251 + 1


class Writer:
    """Appends numbered frames to two environments, ends episodes now and then."""

    def __init__(self, memory: ReplayMemory) -> None:
        self.memory = memory
        self.number = 0
        memory.begin(self._frames(0, 2))

    @staticmethod
    def _frames(number: int, count: int) -> np.ndarray[Any, Any]:
        return np.full((count, *SHAPE), pixel(number), np.uint8)

    def step(self) -> None:
        self.number += 1
        number = self.number
        end = np.array([number % 50 == 0, number % 70 == 0])
        self.memory.append(
            np.full(2, number - 1),
            np.full(2, number - 1, np.float32),
            self._frames(number, 2),
            end,
            np.zeros(2, np.bool_),
        )
        for env in np.flatnonzero(end):
            self.memory.begin(self._frames(number, 1), [env])


def check_rows(batch: dict[str, np.ndarray[Any, Any]]) -> None:
    """Frames are even, follow each other, and belong to the row's action and reward."""
    numbers = batch["actions"]
    np.testing.assert_array_equal(batch["rewards"], numbers.astype(np.float32))
    for name, newest in (("states", 0), ("next_states", 1)):
        flat = batch[name].reshape(len(numbers), STACK, -1)
        first = flat[:, :, :1]
        assert (flat == first).all(), "a frame of two moments"
        shown = first[:, :, 0]
        times = numbers[:, None] + np.arange(1 - STACK, 1) + newest
        padding = shown == 0
        assert (padding[:, :-1] >= padding[:, 1:]).all()
        assert not padding[:, -1].any()
        assert ((shown == pixel(times)) | padding).all(), "frames that do not follow each other"


def names_of(batch: Any) -> dict[str, np.ndarray[Any, Any]]:
    return {name: getattr(batch, name) for name in ("states", "next_states", "actions", "rewards")}


def sample(memory: ReplayMemory) -> None:
    check_rows(names_of(memory.sample(16)))


def sample_channels_last(memory: ReplayMemory) -> None:
    check_rows(names_of(memory.sample(16, channels_last=True)))


def sample_into(memory: ReplayMemory) -> None:
    window = np.empty((16, STACK + 1, *SHAPE), np.uint8)
    columns = {
        "states": window[:, :-1],
        "next_states": window[:, 1:],
        "actions": np.empty(16, np.int64),
        "rewards": np.empty(16, np.float32),
        "discounts": np.empty(16, np.float32),
        "indices": np.empty(16, np.int64),
    }
    memory.sample_into(*columns.values())
    check_rows(columns)


def gather(memory: ReplayMemory) -> None:
    """What was drawable a moment ago may be gone: that is an error, never another row."""
    try:
        batch = memory.gather(memory.valid_indices()[:20])
    except ValueError as error:
        assert "drawn" in str(error)  # noqa: PT017
        return
    check_rows(names_of(batch))


def act(memory: ReplayMemory) -> None:
    stacks = memory.stacks().reshape(2, STACK, -1)
    assert (stacks == stacks[:, :, :1]).all()
    for shown in stacks[:, :, 0]:
        differences = np.diff(np.array([list(map(pixel, range(251))).index(p) for p in shown if p]))
        assert set((differences % 251).tolist()) <= {1}


def inspect(memory: ReplayMemory) -> None:
    memory.check_invariants()
    assert memory.num_frames <= memory.capacity
    assert len(memory) > 0
    memory.needs_padding()


@pytest.mark.parametrize(
    "readers",
    [
        [sample, sample_channels_last, sample_into],
        [gather, act, inspect],
        [sample_into, act, gather],
    ],
    ids=lambda readers: "+".join(reader.__name__ for reader in readers),
)
def test_no_torn_rows(readers: list[Callable[[ReplayMemory], None]]) -> None:
    memory = ReplayMemory(61, SHAPE, num_envs=2, stack=STACK, reward_clip="none")
    writer = Writer(memory)
    for _ in range(40):
        writer.step()
    stop = threading.Event()
    rounds = [0] * len(readers)
    errors: list[BaseException] = []

    def read(which: int) -> None:
        try:
            while not stop.is_set():
                readers[which](memory)
                rounds[which] += 1
        except BaseException as error:
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=read, args=(k,), daemon=True) for k in range(len(readers))]
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and not stop.is_set():
        writer.step()
    stop.set()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive(), "a reader is stuck"
    if errors:
        raise errors[0]
    assert min(rounds) > 5
    assert writer.number > 100
    memory.check_invariants()


def test_a_memory_saved_while_it_is_appended_to_is_one_moment(tmp_path: Path) -> None:
    memory = ReplayMemory(61, SHAPE, num_envs=2, stack=STACK, reward_clip="none")
    writer = Writer(memory)
    stop = threading.Event()

    def write() -> None:
        while not stop.is_set():
            writer.step()

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        for _ in range(10):
            memory.save(tmp_path / "memory")
            loaded = ReplayMemory.load(tmp_path / "memory")
            loaded.check_invariants()
            if len(loaded):
                check_rows(names_of(loaded.gather(loaded.valid_indices())))
    finally:
        stop.set()
        thread.join(timeout=30)
    assert not thread.is_alive()
