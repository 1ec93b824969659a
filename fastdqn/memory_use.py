"""How much memory replay takes for a game: plays it, stores every frame in each way, and measures.

What a frame takes compressed depends on what is on the screen, so that only play can tell. It
changes no setting and trains nothing.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

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
STORES: tuple[Literal["raw", "compressed"], ...] = ("raw", "compressed")


@dataclass(frozen=True)
class StoreUse:
    """One way of storing a game's frames."""

    game: str
    store: str
    frames: int
    """How many were stored."""
    frame_bytes: float
    """What one takes, on average."""
    sample_microseconds: float
    """Median time to draw 32 transitions."""
    million_bytes: float
    """What a memory of a million transitions takes, its records included."""


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
    stack = STACK if agent is None else agent.config.stack
    memories = [
        ReplayMemory(frames, envs.frame_shape, stack=stack, storage=store) for store in STORES
    ]
    policy = _policy(agent, envs.num_actions, seed)
    first = envs.reset()
    for memory in memories:
        memory.begin(first)
    while memories[0].num_frames < frames and not stop():
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
    title = str(envs.protocol()["game"])
    envs.close()
    return [
        StoreUse(
            title,
            memory.storage,
            memory.num_frames,
            memory.frame_nbytes_mean,
            microseconds,
            1e6 * (memory.frame_nbytes_mean + _record_bytes(memory)),
        )
        for memory, microseconds in zip(memories, _sample_times(memories), strict=True)
    ]


def _policy(
    agent: Agent | None, num_actions: int, seed: int
) -> Callable[[ReplayMemory], NDArray[np.int64]]:
    if agent is not None:
        epsilon = agent.config.evaluation_epsilon
        return lambda memory: agent.act(memory.stacks(), epsilon)
    random = np.random.default_rng(seed)
    return lambda _: random.integers(num_actions, size=1)


def _record_bytes(memory: ReplayMemory) -> float:
    """What is kept of a frame beside it: the same for every store, and frames of one byte."""
    return ReplayMemory(memory.capacity, (1,), stack=memory.stack).nbytes / memory.capacity - 1


def _sample_times(memories: list[ReplayMemory]) -> list[float]:
    """Median microseconds to draw a batch, of each memory, in turn so that they share the noise."""
    times: list[list[float]] = [[] for _ in memories]
    if any(len(memory) == 0 for memory in memories):
        return [float("nan")] * len(memories)
    targets: list[list[NDArray[Any]]] = [_targets(memory) for memory in memories]
    for _ in range(SAMPLES):
        for memory, arrays, taken in zip(memories, targets, times, strict=True):
            began = time.perf_counter()
            memory.sample_into(*arrays)
            taken.append(time.perf_counter() - began)
    return [statistics.median(taken) * 1e6 for taken in times]


def _targets(memory: ReplayMemory) -> list[NDArray[Any]]:
    """A batch's arrays as a trainer has them, in which each frame of a row is copied once."""
    window = np.zeros((BATCH_SIZE, memory.stack + 1, *memory.frame_shape), memory.dtype)
    kinds = (np.int64, np.float32, np.float32, np.int64)
    return [window[:, :-1], window[:, 1:], *(np.zeros(BATCH_SIZE, kind) for kind in kinds)]
