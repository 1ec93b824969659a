"""An environment that dies where the variable FATE says, and how: "step kill", "reset raise"."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import gymnasium
import numpy as np


class Mortal(gymnasium.Env[Any, Any]):
    """Phases: init, reset, step (the third), second_reset (after four steps, all of a game)."""

    observation_space: gymnasium.Space[Any] = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
    action_space: gymnasium.Space[Any] = gymnasium.spaces.Discrete(2)

    def __init__(self) -> None:
        self.ends_in, self.by = os.environ.get("FATE", "never dies").split()
        self.steps = 0
        self._meet("init")

    def _meet(self, phase: str) -> None:
        if phase != self.ends_in:
            return
        if self.by == "raise":
            raise ArithmeticError("the ball\nfell off")
        if self.by == "exit":
            os._exit(7)
        if self.by == "sys.exit":
            sys.exit("enough")
        if self.by == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.by == "sleep":
            time.sleep(1000)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        if self.steps:
            self._meet("second_reset")
        self._meet("reset")
        return np.zeros(3, np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        if self.steps == 3:
            self._meet("step")
        return np.zeros(3, np.float32), 1.0, self.steps % 4 == 0, False, {}
