"""A saved environment goes on exactly: in the same process, in another, with sticky actions."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from fastdqn.envs.atari import AtariOptions
from fastdqn.envs.classic import GymVector
from fastdqn.envs.games import all_games
from fastdqn.envs.vector import AtariVector, StateNotSaved, VectorEnv

ATARI: dict[str, dict[str, Any]] = {
    "sticky": {"sticky_actions": 0.25},
    "often sticky": {"sticky_actions": 0.8, "life_loss": "ignore", "noop_max": 0},
    "fire": {"fire_reset": True, "life_loss": "penalty"},
    "every frame": {"sticky_actions": 0.25, "frame_skip": 1},
    "short": {"sticky_actions": 0.25, "max_episode_frames": 170, "frame_skip": 3},
}


def atari(game: str, options: str, num_envs: int, seed: int = 3) -> AtariVector:
    return AtariVector(game, num_envs, AtariOptions(**ATARI[options]), seed=seed)


class Play:
    """Plays random actions, resets what has ended, and sums up all that is seen."""

    def __init__(self, envs: VectorEnv, seed: int = 0) -> None:
        self.envs = envs
        self.random = np.random.default_rng(seed)
        self.ended = 0

    def start(self) -> str:
        return hashlib.sha256(self.envs.reset().tobytes()).hexdigest()

    def steps(self, count: int) -> list[str]:
        return [self.step() for _ in range(count)]

    def step(self) -> str:
        actions = self.random.integers(self.envs.num_actions, size=self.envs.num_envs)
        result = self.envs.step(actions)
        seen = hashlib.sha256()
        for name in result.__slots__:
            seen.update(getattr(result, name).tobytes())
        ended = np.flatnonzero(result.terminated | result.truncated)
        self.ended += len(ended)
        if ended.size:
            seen.update(self.envs.reset(ended).tobytes())
        return seen.hexdigest()


def packed(state: dict[str, Any]) -> str:
    """The state as text: whatever a checkpoint does with it, this has to be enough."""

    def plain(value: Any) -> Any:
        if isinstance(value, bytes):
            return {"bytes": base64.b64encode(value).decode()}
        assert isinstance(value, np.ndarray), type(value)
        return {"array": value.tolist(), "dtype": value.dtype.str}

    return json.dumps(state, default=plain)


def unpacked(text: str) -> dict[str, Any]:
    def native(value: dict[str, Any]) -> Any:
        if "bytes" in value:
            return base64.b64decode(value["bytes"])
        if "array" in value:
            return np.array(value["array"], value["dtype"])
        return value

    state: dict[str, Any] = json.loads(text, object_hook=native)
    return state


def check_goes_on(make: Callable[[], VectorEnv], moments: list[int], then: int) -> int:
    """Saving changes nothing, and from each of the moments others go on as the first did; returns
    how many episodes have ended."""
    play, undisturbed = Play(make()), Play(make())
    assert play.start() == undisturbed.start()
    for steps in moments:
        assert play.steps(steps) == undisturbed.steps(steps)
        state = unpacked(packed(play.envs.save_state()))
        other = Play(make())
        other.random.bit_generator.state = play.random.bit_generator.state
        other.envs.load_state(state)
        assert other.steps(then) == play.steps(then)
        undisturbed.steps(then)
    return play.ended


@pytest.mark.parametrize("options", sorted(ATARI))
@pytest.mark.parametrize(("game", "num_envs"), [("breakout", 2), ("pong", 1), ("seaquest", 1)])
def test_games_go_on(game: str, num_envs: int, options: str) -> None:
    """From any moment, first and last steps of an episode included."""
    ended = check_goes_on(lambda: atari(game, options, num_envs), [0, 1, 7, 1, 60], 20)
    assert ended or options != "short"


@pytest.mark.slow
@pytest.mark.parametrize("game", all_games())
def test_every_game_goes_on(game: str) -> None:
    check_goes_on(lambda: atari(game, "sticky", 1), [10, 31, 25], 20)
    # With every frame looked at but in two games, whose next screens show remnants of the last.
    if game not in ("yars_revenge", "tic_tac_toe_3d"):
        check_goes_on(lambda: atari(game, "every frame", 1), [41, 90, 60], 20)


def test_games_go_on_in_another_process(tmp_path: Path) -> None:
    for options in ("sticky", "often sticky", "fire"):
        play = Play(atari("breakout", options, 2))
        play.start()
        play.steps(137)
        saved = {
            "options": options,
            "state": json.loads(packed(play.envs.save_state())),
            "random": play.random.bit_generator.state,
        }
        (tmp_path / "state.json").write_text(json.dumps(saved))
        seen = play.steps(200)
        other = subprocess.run(
            [sys.executable, __file__, str(tmp_path / "state.json")],
            capture_output=True,
            text=True,
            check=True,
            timeout=120,
        )
        assert json.loads(other.stdout) == seen


def test_one_game_of_a_vector_goes_on_alone() -> None:
    """The states do not depend on the environments beside them."""
    both = Play(atari("breakout", "sticky", 2))
    both.start()
    both.steps(50)
    (_, state) = both.envs.save_state()["envs"]
    alone = atari("breakout", "sticky", 1)
    alone.load_state({"envs": [state]})
    for action in (1, 2, 0, 3) * 10:
        frames = both.envs.step(np.array([0, action])).frames
        assert (frames[1] == alone.step(np.array([action])).frames[0]).all()


def test_another_number_of_states_is_refused() -> None:
    state = atari("breakout", "sticky", 2).save_state()
    with pytest.raises(ValueError, match="states of 3 environments, got 2"):
        atari("breakout", "sticky", 3).load_state(state)


@pytest.mark.parametrize("name", ["CartPole-v1", "MountainCar-v0", "Acrobot-v1"])
def test_classic_control_goes_on(name: str) -> None:
    ended = check_goes_on(lambda: GymVector(name, 2, seed=5), [0, 1, 13, 40, 150], 60)
    assert ended or name == "Acrobot-v1"


def test_other_classes_say_that_they_cannot() -> None:
    class Mine(gymnasium.envs.classic_control.CartPoleEnv):
        pass

    envs = GymVector(Mine, 1)
    envs.reset()
    with pytest.raises(StateNotSaved, match="the state of Mine cannot be saved"):
        envs.save_state()
    with pytest.raises(StateNotSaved, match="FlattenObservation"):
        GymVector(
            lambda: gymnasium.wrappers.FlattenObservation(gymnasium.make("CartPole-v1")), 1
        ).save_state()


def test_the_state_of_another_class_is_refused() -> None:
    envs = GymVector("CartPole-v1", 1)
    envs.reset()
    with pytest.raises(ValueError, match="another class"):
        GymVector("Acrobot-v1", 1).load_state(envs.save_state())


def main(path: str) -> None:
    """The other process: goes on from a file and prints what it sees."""
    saved = unpacked(Path(path).read_text())
    play = Play(atari("breakout", saved["options"], 2))
    play.random.bit_generator.state = saved["random"]
    play.envs.load_state(saved["state"])
    print(json.dumps(play.steps(200)))


if __name__ == "__main__":
    main(sys.argv[1])
