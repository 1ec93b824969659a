"""Environments whose episodes are as long as a test wants."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np

__all__ = ["FixedLength"]


class FixedLength(gymnasium.Env[Any, Any]):
    """Every episode terminates after `length` steps, each of which is worth `reward`."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, length: int, reward: float = 1.0) -> None:
        self._length, self._reward = length, reward

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._steps = 0
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._steps += 1
        return np.ones(2, np.float32), self._reward, self._steps == self._length, False, {}
