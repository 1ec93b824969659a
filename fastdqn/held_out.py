"""Held-out states: the same situations, shown to every agent of a game, to see its values grow.

As in Mnih et al. 2013 (section 5.1): states collected once by a random policy, over which the mean
of the greatest value is followed. They come from the starts of games, are determined by the
protocol, and are kept in a file that later runs of the same protocol use again. A file that is not
what it should be is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fastdqn.agent import Agent
from fastdqn.config import Config
from fastdqn.envs.make import EnvFunction
from fastdqn.errors import UserError
from fastdqn.evaluation import Play

__all__ = ["held_out_file", "held_out_states", "load_states", "mean_max_q"]

_GAMES = 20
_STATES_PER_GAME = 25
_START_STEPS = 100
_SEED = 2013

# What decides what is seen at the start of a game, and how it is stacked.
_PROTOCOL = (
    *("game", "env", "frame_skip", "sticky_actions", "full_action_set", "noop_max", "fire_reset"),
    *("stack", "padding"),
)


def held_out_file(config: Config, folder: Path, title: str) -> Path:
    """Where the states of this config's protocol are kept; `title` is the game's name."""
    protocol = {name: getattr(config, name) for name in _PROTOCOL if name not in ("game", "env")}
    protocol["title"] = title
    if config.game is None:
        protocol["preprocess"] = config.preprocess
    protocol["sampling"] = [_GAMES, _STATES_PER_GAME, _START_STEPS, _SEED]
    digest = hashlib.sha256(json.dumps(protocol, sort_keys=True).encode()).hexdigest()[:12]
    return folder / f"{re.sub(r'[^A-Za-z0-9.-]+', '_', title)}-{digest}.npz"


def held_out_states(
    agent: Agent, file: Path | None, env_fn: EnvFunction | None = None
) -> NDArray[Any]:
    """The states [up to 500, stack, *frame_shape] in `file`, or sampled and put there.

    With no `file` they are sampled, the same ones every time. Raises `UserError` where the file is
    damaged or cannot be written.
    """
    if file is not None and file.exists():
        return load_states(file, agent.frame_shape, agent.dtype, agent.config.stack)
    states = _sample(agent, env_fn)
    if file is not None:
        _write(file, states)
    return states


def mean_max_q(agent: Agent, states: NDArray[Any]) -> float:
    """The mean over the states of what the agent thinks is the best action's value."""
    greatest = [agent.q_values(states[i : i + 50]).max(1) for i in range(0, len(states), 50)]
    return float(np.concatenate(greatest).mean()) if greatest else float("nan")


def _sample(agent: Agent, env_fn: EnvFunction | None) -> NDArray[Any]:
    shape = (1, agent.config.stack, *agent.frame_shape)
    states = []
    for number in range(_GAMES):
        play = Play(agent, number, _SEED, agent.config.max_episode_frames, env_fn)
        steps = play.generator.choice(_START_STEPS, _STATES_PER_GAME, replace=False)
        try:
            while play.is_under_way and play.steps <= steps.max():
                if play.steps in steps and not play.must_explore:
                    state = np.empty(shape, agent.dtype)
                    play.write_stack(state)
                    states.append(state)
                play.step(int(play.generator.integers(agent.num_actions)))
        finally:
            play.close()
    return np.concatenate(states) if states else np.empty((0, *shape[1:]), agent.dtype)


def load_states(
    file: Path, frame_shape: tuple[int, ...], dtype: np.dtype[Any], stack: int
) -> NDArray[Any]:
    """The states in `file`. Raises `UserError` where it does not hold such states."""
    try:
        with zipfile.ZipFile(file) as archive, archive.open("states.npy") as member:
            # What the file claims is checked before anything is allocated for it.
            version = np.lib.format.read_magic(member)
            if version != (1, 0):
                raise ValueError(f"format {version}")
            found, _, found_dtype = np.lib.format.read_array_header_1_0(member)
        if found[1:] != (stack, *frame_shape) or found_dtype != dtype:
            raise ValueError(f"{found_dtype} {found}")
        if not 0 <= found[0] <= _GAMES * _STATES_PER_GAME:
            raise ValueError(f"{found[0]} states")
        with np.load(file, allow_pickle=False) as arrays:
            states: NDArray[Any] = arrays["states"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise UserError(
            f"{file}: not the held-out states of this game ({error}); delete it to have them "
            "sampled anew"
        ) from None
    return states


def _write(file: Path, states: NDArray[Any]) -> None:
    # Runs that begin together write the same bytes, each to a file of its own beside this one.
    aside = file.with_name(f"{file.name}.{os.getpid()}.partial")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        with aside.open("wb") as opened:
            np.savez_compressed(opened, states=states)
        aside.replace(file)
    except OSError as error:
        with contextlib.suppress(OSError):
            aside.unlink()
        raise UserError(f"{file}: cannot be written: {error.strerror}") from None
