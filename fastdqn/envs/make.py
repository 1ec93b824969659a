"""The environments that a run's settings name."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any

import gymnasium

from fastdqn.envs.atari import AtariOptions
from fastdqn.envs.classic import GymVector, Preprocess
from fastdqn.envs.vector import AtariVector, SerialVector, VectorEnv
from fastdqn.envs.workers import WorkerVector
from fastdqn.errors import UserError

__all__ = ["GYM_OPTIONS", "EnvFunction", "default_workers", "make_envs", "make_serial"]

# The settings of a game that preprocess="atari" gives to other environments.
GYM_OPTIONS = ("frame_skip", "reward_clip", "reward_clip_at")

EnvFunction = Callable[[], gymnasium.Env[Any, Any]]


def make_envs(
    env: str | EnvFunction | None,
    game: str | None,
    num_envs: int,
    *,
    seed: int,
    workers: int | None = 0,
    **options: Any,
) -> VectorEnv:
    """`num_envs` environments: gymnasium's, by name or function, or else Atari's `game`.

    `options` are those of `AtariOptions` and `preprocess`, each for those environments that have
    it (see `GymVector`). With `workers` they are split over as many processes (None: as many as
    pay off), and are the same; where games need every core, this process is one of them. Raises
    `UserError` where none such exists, or where workers cannot make it.
    """
    cores = len(os.sched_getaffinity(0))
    if workers is None:
        workers = default_workers(num_envs, cores) if env is None else 0
    if not workers:
        return make_serial(env, game, num_envs, seed=seed, **options)
    if env is not None and not isinstance(env, str):
        raise UserError(
            f"workers={workers}: environments that a function makes stay in this process; give "
            'a name that can be imported, such as env="my_module:make_env", or workers=0'
        )
    make_own = None
    # No core is left for this process alone: it plays, too, but only what does not fail.
    if env is None and workers > 1 and cores <= workers:
        make_own = functools.partial(make_serial, env, game, num_envs, seed=seed, **options)
    return WorkerVector(
        env, game, num_envs, workers=workers, seed=seed, make_own=make_own, **options
    )


def default_workers(num_envs: int, cores: int) -> int:
    """How many processes pay off for `num_envs` games on so many cores; 0: none beside this one.

    A single game waits for its worker's signals, which costs more than is gained. All cores but one
    are the games'; but of two none: there updates are computed on the other one while the games are
    played here.
    """
    return min(num_envs, cores - 1) if num_envs > 1 and cores > 2 else 0


def make_serial(
    env: str | EnvFunction | None,
    game: str | None,
    num_envs: int,
    *,
    seed: int,
    share: range | None = None,
    preprocess: Preprocess = "none",
    **options: Any,
) -> SerialVector:
    """Those of them that `share` names (None: all), in this process."""
    if env is not None:
        rules = {name: options[name] for name in GYM_OPTIONS if name in options}
        return GymVector(env, num_envs, seed=seed, preprocess=preprocess, share=share, **rules)
    if game is None:
        raise UserError(
            'no game: give one, such as game="Breakout" (--game Breakout), or a gymnasium '
            'environment, such as env="CartPole-v1" (--env CartPole-v1)'
        )
    return AtariVector(game, num_envs, AtariOptions(**options), seed=seed, share=share)
