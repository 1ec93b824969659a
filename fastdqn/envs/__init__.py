"""Environments: the only package that imports ale_py and gymnasium."""

from __future__ import annotations

from fastdqn.envs.atari import AtariEnv, AtariOptions
from fastdqn.envs.classic import GymVector
from fastdqn.envs.games import all_games, resolve_game
from fastdqn.envs.vector import AtariVector, StepResult, VectorEnv

__all__ = [
    "AtariEnv",
    "AtariOptions",
    "AtariVector",
    "GymVector",
    "StepResult",
    "VectorEnv",
    "all_games",
    "resolve_game",
]
