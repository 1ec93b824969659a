"""How much memory replay takes for a game: plays it, stores every frame in each way, and measures.

What a frame takes compressed depends on what is on the screen, so that only play can tell. It
changes no setting and trains nothing.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdqn.agent import Agent
from fastdqn.envs.atari import AtariOptions
from fastdqn.envs.vector import AtariVector
from fastdqn.replay import ReplayMemory

__all__ = ["StoreUse", "measure_game"]

STACK = 4
BATCH_SIZE = 32
SAMPLES = 200


@dataclass(frozen=True)
class StoreUse:
    """One way of storing a game's frames."""

    game: str
    store: str
    """raw, compressed, or in files (compressed as well)."""
    frames: int
    """How many were stored."""
    frame_bytes: float
    """What one takes, on average."""
    sample_microseconds: float
    """Median time to draw 32 transitions."""
    million_bytes: float
    """What a memory of a million transitions takes, its records included."""
    million_memory_bytes: float
    """The part of that which is not in files."""


def measure_game(
    game: str,
    frames: int,
    *,
    seed: int = 0,
    agent: Agent | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> list[StoreUse]:
    """Play `game` at random, or as `agent` does, until `frames` are stored, in every way at once.

    Raises `UserError` where the game does not exist.
    """
    options = {} if agent is None else agent.config.game_options()
    envs = AtariVector(game, 1, AtariOptions(**options), seed=seed)
    shape, stack = envs.frame_shape, STACK if agent is None else agent.config.stack
    with tempfile.TemporaryDirectory(prefix="fastdqn-memory-") as folder:
        memories = {
            "raw": ReplayMemory(frames, shape, stack=stack),
            "compressed": ReplayMemory(frames, shape, stack=stack, storage="compressed"),
            "in files": ReplayMemory(
                frames, shape, stack=stack, storage="compressed", directory=folder
            ),
        }
        _play(envs, list(memories.values()), _policy(agent, envs.num_actions, seed), stop)
        times = _sample_times(list(memories.values()))
        title = str(envs.protocol()["game"])
        uses = [
            _use(title, store, memory, microseconds)
            for (store, memory), microseconds in zip(memories.items(), times, strict=True)
        ]
        for memory in memories.values():
            memory.close()
    envs.close()
    return uses


def _play(
    envs: AtariVector,
    memories: Sequence[ReplayMemory],
    policy: Callable[[ReplayMemory], NDArray[np.int64]],
    stop: Callable[[], bool],
) -> None:
    """Fill the memories, all with the same frames."""
    first = envs.reset()
    for memory in memories:
        memory.begin(first)
    while memories[0].num_frames < memories[0].capacity and not stop():
        result = envs.step(policy(memories[0]))
        for memory in memories:
            memory.append(
                result.actions,
                result.learning_rewards,
                result.frames,
                result.terminated,
                result.truncated,
                life_lost=result.life_lost,
            )
        if result.terminated[0] or result.truncated[0]:
            first = envs.reset()
            for memory in memories:
                memory.begin(first)


def _policy(
    agent: Agent | None, num_actions: int, seed: int
) -> Callable[[ReplayMemory], NDArray[np.int64]]:
    if agent is not None:
        epsilon = agent.config.evaluation_epsilon
        return lambda memory: agent.act(memory.stacks(), epsilon)
    random = np.random.default_rng(seed)
    return lambda _: random.integers(num_actions, size=1)


def _use(game: str, store: str, memory: ReplayMemory, microseconds: float) -> StoreUse:
    frame_bytes = memory.frame_nbytes_mean
    # What is kept beside a frame is the same for every store, so that frames of one byte show it.
    beside = ReplayMemory(memory.capacity, (1,), stack=memory.stack).nbytes / memory.capacity - 1
    in_memory = beside + (0 if store == "in files" else frame_bytes)
    return StoreUse(
        game,
        store,
        memory.num_frames,
        frame_bytes,
        microseconds,
        million_bytes=1e6 * (frame_bytes + beside),
        million_memory_bytes=1e6 * in_memory,
    )


def _sample_times(memories: Sequence[ReplayMemory]) -> list[float]:
    """Median microseconds to draw a batch, of each memory, in turn so that they share the noise."""
    if any(len(memory) == 0 for memory in memories):  # stopped at once
        return [float("nan")] * len(memories)
    times: list[list[float]] = [[] for _ in memories]
    targets = [_targets(memory) for memory in memories]
    for _ in range(SAMPLES):
        for memory, arrays, taken in zip(memories, targets, times, strict=True):
            began = time.perf_counter()
            memory.sample_into(*arrays)
            taken.append(time.perf_counter() - began)
    return [statistics.median(taken) * 1e6 for taken in times]


def _targets(memory: ReplayMemory) -> tuple[NDArray[Any], ...]:
    """A batch's arrays as a trainer has them, in which each frame of a row is copied once."""
    window = np.zeros((BATCH_SIZE, memory.stack + 1, *memory.frame_shape), memory.dtype)
    kinds = (np.int64, np.float32, np.float32, np.int64)
    return (window[:, :-1], window[:, 1:], *(np.zeros(BATCH_SIZE, kind) for kind in kinds))
