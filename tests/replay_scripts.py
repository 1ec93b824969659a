"""Short scripts for a ReplayMemory whose frames are numbers, so that a stack reads as a list."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fastdqn.replay import ReplayMemory


class Drawn(NamedTuple):
    """One transition of a memory of numbers: the stacks as lists of frame numbers."""

    state: list[int]
    action: int
    reward: float
    discount: float
    next_state: list[int]


def numbers(capacity: int, **options: Any) -> Script:
    """A script on a memory whose frames are single numbers; rewards as they are by default."""
    options = {"reward_clip": "none", "discount": 0.5, **options}
    return Script(ReplayMemory(capacity, (1,), "int64", **options))


class Script:
    """Frames are numbered 1, 2, 3, ... over all environments (0 is padding).

    The action taken at a frame is the frame's number too, unless it is given.
    """

    def __init__(self, memory: ReplayMemory) -> None:
        self.memory = memory
        self.frames = 0
        self.newest: dict[int, int] = {}

    def _next_frames(self, envs: Sequence[int]) -> np.ndarray[Any, Any]:
        first = self.frames + 1
        self.frames += len(envs)
        frames = np.arange(first, first + len(envs), dtype=np.int64)
        self.newest.update(zip(envs, frames.tolist(), strict=True))
        return frames[:, None]

    def begin(self, *envs: int) -> Script:
        """A new episode in the named environments, or in all of them."""
        envs = envs or tuple(range(self.memory.num_envs))
        self.memory.begin(self._next_frames(envs), list(envs))
        return self

    def step(
        self,
        *envs: int,
        reward: float = 0.0,
        terminated: bool = False,
        truncated: bool = False,
        life_lost: bool = False,
    ) -> Script:
        """One step of the named environments, or of all of them."""
        envs = envs or tuple(range(self.memory.num_envs))
        count = len(envs)
        actions = np.array([self.newest[env] for env in envs], np.int64)
        self.memory.append(
            actions,
            np.full(count, reward, np.float64),
            self._next_frames(envs),
            np.full(count, terminated),
            np.full(count, truncated),
            list(envs),
            life_lost=np.full(count, life_lost),
        )
        self.memory.check_invariants()
        return self

    def steps(self, count: int, **options: Any) -> Script:
        for _ in range(count):
            self.step(**options)
        return self

    def episode(self, steps: int, end: str = "terminated", **options: Any) -> Script:
        """Begins, plays `steps` steps and ends as named in ENDS."""
        self.begin()
        self.steps(steps - 1, **options)
        return self.step(**ENDS[end], **options)

    def drawable(self) -> list[Drawn]:
        """Every transition that can be drawn, oldest first."""
        if len(self.memory) == 0:
            return []
        batch = self.memory.gather(self.memory.valid_indices())
        drawn = [
            Drawn(*row)
            for row in zip(
                batch.states[:, :, 0].tolist(),
                batch.actions.tolist(),
                batch.rewards.tolist(),
                batch.discounts.tolist(),
                batch.next_states[:, :, 0].tolist(),
                strict=True,
            )
        ]
        return sorted(drawn, key=lambda row: row.state[-1])


# The ways in which an episode stops. "interrupted" is what a begin on an open episode does.
ENDS: dict[str, dict[str, bool]] = {
    "terminated": {"terminated": True},
    "truncated": {"truncated": True},
    "both": {"terminated": True, "truncated": True},
    "interrupted": {},
}
