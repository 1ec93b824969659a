"""The environments that a run's settings name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium

from fastdqn.envs.atari import AtariOptions
from fastdqn.envs.classic import GymVector
from fastdqn.envs.vector import AtariVector, VectorEnv
from fastdqn.errors import UserError

__all__ = ["EnvFunction", "make_envs"]

EnvFunction = Callable[[], gymnasium.Env[Any, Any]]


def make_envs(
    env: str | EnvFunction | None, game: str | None, num_envs: int, *, seed: int, **options: Any
) -> VectorEnv:
    """`num_envs` environments: gymnasium's, by id or function, or else Atari's `game`.

    `options` are those of `AtariOptions`, for a game alone. Raises `UserError` where neither is
    given, or none such exists.
    """
    if env is not None:
        return GymVector(env, num_envs, seed=seed)
    if game is None:
        raise UserError(
            'no game: give one, such as game="Breakout" (--game Breakout), or a gymnasium '
            'environment, such as env="CartPole-v1" (--env CartPole-v1)'
        )
    return AtariVector(game, num_envs, AtariOptions(**options), seed=seed)
