"""Games that are started ahead of time: the same games, whenever that is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from fastdqn.envs.atari import AtariEnv, AtariOptions
from fastdqn.envs.vector import AtariVector, SerialVector, spawn_seeds

# Yars' Revenge and Ice Hockey start with pixels that are left over from the game before.
GAMES = ["breakout", "seaquest", "yars_revenge", "ice_hockey"]
OPTIONS: list[dict[str, Any]] = [
    {"sticky_actions": 0.25, "max_episode_frames": 90},
    {"sticky_actions": 0.5, "fire_reset": True, "noop_max": 12, "max_episode_frames": 40},
]


def vector(game: str, options: dict[str, Any], num_envs: int = 2) -> AtariVector:
    return AtariVector(game, num_envs, AtariOptions(**options), seed=5)


def play(
    envs: SerialVector, steps: int, *, ahead: float, state: Any = None, seed: int = 0
) -> list[bytes]:
    """All that random actions lead to; before a share `ahead` of the steps a game is prepared."""
    actions, moments = np.random.default_rng(seed), np.random.default_rng(9)
    if state is None:
        seen = [envs.reset().tobytes()]
    else:
        envs.load_state(state)
        seen = []
    for _ in range(steps):
        if moments.random() < ahead:
            envs.prepare()
        result = envs.step(actions.integers(envs.num_actions, size=envs.num_envs))
        seen += [array.tobytes() for array in result.arrays().values()]
        ended = np.flatnonzero(result.terminated | result.truncated)
        if ended.size:
            seen.append(envs.reset(ended).tobytes())
    return seen


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("game", GAMES)
def test_games_do_not_depend_on_when_they_are_prepared(game: str, options: dict[str, Any]) -> None:
    expected = play(vector(game, options), 120, ahead=0)
    for ahead in (0.1, 1.0):
        assert play(vector(game, options), 120, ahead=ahead) == expected


@pytest.mark.parametrize("options", OPTIONS)
def test_a_state_is_the_same_whoever_had_time_before(options: dict[str, Any]) -> None:
    states, later = [], []
    for ahead in (0, 0.1, 1.0):
        envs = vector("breakout", options)
        play(envs, 77, ahead=ahead)
        state = envs.save_state()
        states.append(repr(state))
        later.append(play(vector("breakout", options), 60, ahead=ahead, state=state, seed=1))
    assert states[0] == states[1] == states[2]
    assert later[0] == later[1] == later[2]


def test_a_state_before_the_first_game_is_one_too() -> None:
    envs = vector("breakout", OPTIONS[0])
    assert not envs.prepare()  # nothing is played yet
    other = vector("breakout", OPTIONS[0])
    play(other, 30, ahead=0.5)
    state = envs.save_state()
    other.load_state(state)
    with pytest.raises(RuntimeError, match="reset before the next step"):
        other.step(np.zeros(2, np.int64))
    assert play(envs, 60, ahead=0) == play(other, 60, ahead=0)


def test_each_game_is_prepared_once() -> None:
    envs = vector("breakout", {"max_episode_frames": 8})
    envs.reset()
    both = np.arange(2)
    assert envs.must_start(both)
    assert envs.prepare()
    assert not envs.must_start(both[:1])
    assert envs.must_start(both)
    assert envs.prepare()
    assert not envs.must_start(both)
    assert not envs.prepare()
    envs.reset(both[1:])
    assert envs.must_start(both)
    assert envs.prepare()
    assert not envs.prepare()


def test_the_games_are_those_of_one_emulator() -> None:
    """The first of a vector's environment is AtariEnv's with its seed, and the second starts as any
    of Breakout does."""
    options: dict[str, Any] = {"noop_max": 0, "max_episode_frames": 60, "sticky_actions": 0.25}
    envs = vector("breakout", options, 1)
    alone = AtariEnv("breakout", **options)
    alone._game.seed(spawn_seeds(5, 1, None)[0])
    for _ in range(3):
        frame, _ = alone.reset()
        assert (envs.reset()[0] == frame).all()
    sticks = AtariEnv("breakout", **options)
    sticks._game.seed(spawn_seeds(5, 1, None)[0])
    sticks.reset()
    first = vector("breakout", options, 1)
    first.reset()
    for action in (1, 2, 3, 2, 3, 3, 2, 0) * 2:
        frame, *_, truncated, _ = sticks.step(action)
        result = first.step(np.array([action]))
        assert (result.frames[0] == frame).all()
        assert bool(result.truncated[0]) == truncated
        if truncated:
            break
    assert truncated
