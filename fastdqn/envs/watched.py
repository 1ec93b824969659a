"""Environments to look at: beside what the agent sees, the screens in the game's own colours.

Of a game every frame of the emulator is kept, not only the last of a step: some games draw half of
their figures on every other frame.
"""

from __future__ import annotations

from typing import Any

import ale_py
import gymnasium
import numpy as np
import numpy.typing as npt

from fastdqn.envs.atari import AtariOptions
from fastdqn.envs.classic import GymVector, Preprocess, make_gym
from fastdqn.envs.make import GYM_OPTIONS, EnvFunction
from fastdqn.envs.vector import AtariVector, VectorEnv
from fastdqn.errors import UserError

__all__ = ["WatchedEnvs"]

Screen = npt.NDArray[np.uint8]


class WatchedEnvs:
    """Makes single environments like `make_envs`, and collects what they show.

    `frames_per_second` is how fast the screens are to be shown. Raises `UserError` where there is
    nothing to see.
    """

    def __init__(
        self,
        env: str | EnvFunction | None,
        game: str | None,
        *,
        preprocess: Preprocess = "none",
        **options: Any,
    ) -> None:
        self._env = env
        self._game = game
        self._preprocess = preprocess
        self._options = options
        self._screens: list[Screen] = []
        self.frames_per_second = 60.0

    def make(self, seed: int) -> VectorEnv:
        """One environment, whose screens `take` returns from now on."""
        if self._env is None:
            assert self._game is not None
            options = AtariOptions(**self._options)
            return AtariVector(self._game, 1, options, seed=seed, watch=self._see)
        made = self._make_gym()
        rate = made.metadata.get("render_fps")
        self.frames_per_second = 30.0 if rate is None else float(rate)
        rules = {name: self._options[name] for name in GYM_OPTIONS if name in self._options}

        def watch() -> None:
            self._screens.append(self._rendered(made))

        return GymVector(
            lambda: made, 1, seed=seed, preprocess=self._preprocess, watch=watch, **rules
        )

    def take(self) -> list[Screen]:
        """The screens [height, width, 3] since the last call, the oldest first."""
        screens, self._screens = self._screens, []
        return screens

    def _rendered(self, made: gymnasium.Env[Any, Any]) -> Screen:
        try:
            return np.array(made.render(), np.uint8)
        except gymnasium.error.Error as error:  # such as a package that is not installed
            message = " ".join(str(error).split())
            raise UserError(f"environment {self._env!r} cannot be shown: {message}") from None

    def _see(self, ale: ale_py.ALEInterface) -> None:
        self._screens.append(ale.getScreenRGB())

    def _make_gym(self) -> gymnasium.Env[Any, Any]:
        assert self._env is not None
        made = make_gym(self._env, render_mode="rgb_array")
        if made.render_mode != "rgb_array":
            raise UserError(
                f"environment {made} shows nothing: it must be made with render_mode='rgb_array'"
            )
        return made
