"""Threads that sample while another appends see whole rows, as they were at one moment.

Every frame is filled with one value that follows from its number and the action is the number, so
that a row put together from two moments shows.
"""

from __future__ import annotations

import functools
import itertools
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastdqn.replay import ReplayMemory

SHAPE = (40, 40)
STACK = 4
SECONDS = 1.0


def pixel(number: Any) -> Any:
    """The value that fills frame `number`: never 0, which is padding."""
    return number * 97 % 251 + 1


NUMBER_OF_PIXEL = {pixel(number): number for number in range(251)}


class Writer:
    """Appends numbered frames to some environments, ends episodes now and then."""

    def __init__(self, memory: ReplayMemory, *envs: int) -> None:
        self.memory = memory
        self.envs = np.array(envs)
        self.number = 0
        memory.begin(self._frames(), self.envs)

    def _frames(self, count: int | None = None) -> np.ndarray[Any, Any]:
        count = len(self.envs) if count is None else count
        return np.full((count, *SHAPE), pixel(self.number), np.uint8)

    def step(self) -> None:
        self.number += 1
        count = len(self.envs)
        end = self.number % np.where(self.envs == 0, 50, 70) == 0
        self.memory.append(
            np.full(count, self.number - 1),
            np.full(count, self.number - 1, np.float32),
            self._frames(),
            end,
            np.zeros(count, np.bool_),
            self.envs,
        )
        if end.any():
            self.memory.begin(self._frames(int(end.sum())), self.envs[end])


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
    """A stack is of one moment too: frames that follow each other, behind padding."""
    try:
        stacks = memory.stacks().reshape(2, STACK, -1)
    except ValueError as error:
        assert "overwritten" in str(error)  # noqa: PT017
        return
    assert (stacks == stacks[:, :, :1]).all()
    for shown in stacks[:, :, 0].tolist():
        numbers = [NUMBER_OF_PIXEL[value] for value in shown if value]
        assert shown == [0] * (STACK - len(numbers)) + [pixel(number) for number in numbers]
        assert all((after - before) % 251 == 1 for before, after in itertools.pairwise(numbers))


def inspect(memory: ReplayMemory) -> None:
    memory.check_invariants()
    assert memory.num_frames <= memory.capacity
    assert len(memory) > 0
    memory.needs_padding()


def run_together(
    writers: list[Writer], readers: list[Callable[[ReplayMemory], None]], memory: ReplayMemory
) -> None:
    """Every writer and reader in a thread of its own; raises what any of them does.

    For SECONDS, and on a busy machine until each has had some rounds: none may starve.
    """
    stop = threading.Event()
    jobs: list[Callable[[], None]] = [writer.step for writer in writers]
    jobs += [functools.partial(reader, memory) for reader in readers]
    rounds = [0] * len(jobs)
    errors: list[BaseException] = []

    def work(which: int) -> None:
        try:
            while not stop.is_set():
                jobs[which]()
                rounds[which] += 1
        except BaseException as error:
            errors.append(error)
            stop.set()

    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(len(jobs))]
    for thread in threads:
        thread.start()
    stop.wait(SECONDS)
    for _ in range(60):
        if min(rounds) <= 5:
            stop.wait(1.0)
    stop.set()
    for thread in threads:
        thread.join(timeout=30)
        assert not thread.is_alive(), "a thread is stuck"
    if errors:
        raise errors[0]
    assert min(rounds) > 5, "a thread starved"
    memory.check_invariants()


@pytest.mark.parametrize(
    "readers",
    [
        [sample, sample_channels_last, sample_into],
        [gather, act, inspect],
        [sample_into, act, gather],
    ],
    ids=lambda readers: "+".join(reader.__name__ for reader in readers),
)
@pytest.mark.parametrize("envs_of_writers", [[(0, 1)], [(0,), (1,)]], ids=["one", "two"])
def test_no_torn_rows(
    readers: list[Callable[[ReplayMemory], None]], envs_of_writers: list[tuple[int, ...]]
) -> None:
    memory = ReplayMemory(61, SHAPE, num_envs=2, stack=STACK, reward_clip="none")
    writers = [Writer(memory, *envs) for envs in envs_of_writers]
    for _ in range(10):
        for writer in writers:
            writer.step()
    run_together(writers, readers, memory)


def test_a_memory_saved_while_it_is_appended_to_is_one_moment(tmp_path: Path) -> None:
    memory = ReplayMemory(61, SHAPE, num_envs=2, stack=STACK, reward_clip="none")
    writer = Writer(memory, 0, 1)
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
