"""The environments that a `Config` names."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import gymnasium

from fastdqn.config import Config
from fastdqn.envs.atari import AtariOptions
from fastdqn.envs.classic import GymVector
from fastdqn.envs.vector import AtariVector, VectorEnv
from fastdqn.errors import UserError

__all__ = ["EnvFunction", "make_envs"]

EnvFunction = Callable[[], gymnasium.Env[Any, Any]]


def make_envs(
    config: Config, num_envs: int, *, seed: int, env_fn: EnvFunction | None = None
) -> VectorEnv:
    """`num_envs` environments made by `env_fn`, or else those of the config's `env` or `game`.

    Raises `UserError` where none of them is given, or none such exists.
    """
    env = config.env if env_fn is None else env_fn
    if env is not None:
        return GymVector(env, num_envs, seed=seed)
    if config.game is None:
        raise UserError(
            'no game: give one, such as game="Breakout" (--game Breakout), or a gymnasium '
            'environment, such as env="CartPole-v1" (--env CartPole-v1)'
        )
    names = (field.name for field in dataclasses.fields(AtariOptions))
    shared = {name: getattr(config, name) for name in names if hasattr(config, name)}
    return AtariVector(config.game, num_envs, AtariOptions(**shared), seed=seed)
