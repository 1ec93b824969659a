"""The environments as their users meet them: names, spaces, seeds, limits, classic control.

The rules of a step are tested against an oracle elsewhere; here are the ways to set them, on real
games, and the two vectors.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from ale_py import roms
from gymnasium.utils.env_checker import check_env

from fastdqn._rollout import AtariStepper
from fastdqn.config import Config
from fastdqn.envs import (
    AtariEnv,
    AtariOptions,
    AtariVector,
    GymVector,
    VectorEnv,
    all_games,
    resolve_game,
)
from fastdqn.envs.games import game_title
from fastdqn.errors import UserError

FOR_TWO = {"combat", "joust", "maze_craze", "warlords"}

# -- Names ---------------------------------------------------------------------------------------


def test_all_games_of_ale_py_are_there() -> None:
    assert set(all_games()) == set(roms.get_all_rom_ids()) - FOR_TWO
    assert len(all_games()) >= 100


@pytest.mark.parametrize("game", all_games())
def test_every_form_of_a_name_resolves(game: str) -> None:
    title = game_title(game)
    spaced = game.replace("_", " ").title()
    for name in (game, game.upper(), title, title.lower(), spaced, f" {title} ", f"ALE/{title}-v5"):
        assert resolve_game(name) == game
    for suffix in ("", "NoFrameskip", "Deterministic"):
        for version in ("-v0", "-v4", "-v5"):
            assert resolve_game(f"{title}{suffix}{version}") == game


def test_the_ids_that_gymnasium_registers_resolve() -> None:
    ids = [
        (name, spec.kwargs["game"])
        for name, spec in gymnasium.registry.items()
        if str(spec.entry_point).startswith("ale_py") and "-ram" not in name
    ]
    assert len(ids) > 300
    for name, game in ids:
        assert resolve_game(name) == game


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("Brekout", "Breakout"),
        ("ALE/SpaceInvader-v5", "SpaceInvaders"),
        ("seequest", "Seaquest"),
        ("Montezuma", "MontezumaRevenge"),
    ],
)
def test_a_misspelt_name_gets_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(UserError, match=nearest) as caught:
        resolve_game(name)
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["", "xyzzy", "ALE/", "-v5", "CartPole-v1"])
def test_what_is_no_game_is_refused(name: str) -> None:
    with pytest.raises(UserError, match="unknown game"):
        AtariEnv(name)


@pytest.mark.parametrize("name", ["Breakout-ram-v4", "Pong-ramNoFrameskip-v4", "ALE/Pong-ram-v5"])
def test_ram_observations_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="RAM"):
        AtariEnv(name)


@pytest.mark.parametrize("name", sorted(FOR_TWO))
def test_games_for_two_are_refused(name: str) -> None:
    with pytest.raises(UserError, match="alone"):
        AtariEnv(name)


def test_a_missing_rom_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("ALE_ROMS_DIR", str(tmp_path))
    with pytest.raises(UserError, match=r"the ROM of game 'pong' cannot be read.*pong\.bin"):
        AtariEnv("Pong")


def test_nothing_is_printed() -> None:
    script = "import fastdqn; env = fastdqn.AtariEnv('Pong'); env.reset(); env.step(0)"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=False
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "", "")


# -- AtariEnv ------------------------------------------------------------------------------------


@pytest.mark.parametrize("game", ["Breakout", "Pong", "AirRaid", "VideoCheckers"])
@pytest.mark.parametrize("render_mode", [None, "rgb_array"])
def test_gymnasiums_checker_passes(game: str, render_mode: str | None) -> None:
    check_env(AtariEnv(game, render_mode=render_mode))


@pytest.mark.slow
@pytest.mark.parametrize("game", all_games())
def test_every_game_plays(game: str) -> None:
    env = AtariEnv(game, seed=1, fire_reset=True)
    random = np.random.default_rng(0)
    frame, info = env.reset()
    shown = [frame]
    for _ in range(100):
        frame, reward, terminated, truncated, info = env.step(random.integers(env.action_space.n))
        assert frame in env.observation_space
        assert info["frames"] == 4 or terminated
        assert isinstance(reward, float)
        assert not truncated
        shown.append(frame)
        if terminated:
            env.reset()
    assert len({frame.tobytes() for frame in shown}) > 1


@pytest.mark.parametrize(
    ("game", "minimal"), [("Breakout", 4), ("Pong", 6), ("Freeway", 3), ("Boxing", 18)]
)
def test_action_sets(game: str, minimal: int) -> None:
    assert AtariEnv(game).action_space == gymnasium.spaces.Discrete(minimal)
    full = AtariEnv(game, full_action_set=True)
    assert full.action_space == gymnasium.spaces.Discrete(18)
    assert full.get_action_meanings()[:3] == ["NOOP", "FIRE", "UP"]


def test_the_protocol_says_what_is_played() -> None:
    env = AtariEnv("ALE/Breakout-v5", sticky_actions=0.25, frame_shape=(42, 42))
    protocol = env.protocol()
    assert json.loads(json.dumps(protocol)) == protocol
    assert protocol["game"] == "Breakout"
    assert protocol["action_meanings"] == ["NOOP", "FIRE", "RIGHT", "LEFT"]
    assert protocol["num_actions"] == 4
    assert protocol["sticky_actions"] == 0.25
    assert protocol["frame_skip"] == 4
    assert protocol["max_episode_frames"] == 108_000
    assert protocol["life_loss"] == "terminal"
    assert protocol["frame_shape"] == [42, 42]
    assert str(protocol["emulator"]).startswith("ale-py ")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"frame_skip": 0}, "frame_skip"),
        ({"max_episode_frames": 0}, "max_episode_frames"),
        ({"sticky_actions": 1.5}, "sticky_actions"),
        ({"sticky_actions": float("nan")}, "sticky_actions"),
        ({"noop_max": -1}, "noop_max"),
        ({"life_loss": "fatal"}, "life_loss must be one of terminal, ignore, penalty"),
        ({"reward_clip": "tanh"}, "reward_clip must be one of none, sign, clip"),
        ({"reward_clip_at": "game"}, "reward_clip_at must be one of step, frame"),
        ({"frame_shape": (84,)}, "frame_shape"),
        ({"frame_shape": (0, 84)}, "frame_shape"),
        ({"frame_shape": (84, -1)}, "frame_shape"),
        ({"frame_shape": (211, 84)}, "210 pixels to 211"),
        ({"render_mode": "human"}, "render_mode"),
    ],
)
def test_impossible_settings_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        AtariEnv("Pong", **options)
    assert "\n" not in str(caught.value)


def test_rendering_shows_the_games_colours() -> None:
    env = AtariEnv("Breakout", render_mode="rgb_array", seed=1)
    env.reset()
    picture = env.render()
    assert picture is not None
    assert picture.shape == (210, 160, 3)
    assert np.array_equal(picture, env.ale.getScreenRGB())
    assert (picture[..., 0] != picture[..., 1]).any()
    assert AtariEnv("Breakout").render() is None


def test_an_ended_game_must_be_reset() -> None:
    env = AtariEnv("Pong", max_episode_frames=1, seed=1)
    with pytest.raises(RuntimeError, match="reset"):
        env.step(0)
    env.reset()
    env.step(0)
    with pytest.raises(RuntimeError, match="reset"):
        env.step(0)
    env.reset()
    env.step(0)


@pytest.mark.parametrize("action", [-1, 6, 1.0, "0", None])
def test_what_is_no_action_is_refused(action: Any) -> None:
    env = AtariEnv("Pong", seed=1)
    env.reset()
    with pytest.raises((IndexError, TypeError)):
        env.step(action)


# -- Limits, no-ops, FIRE, lives -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("limit", "frames"),
    [(1, [1]), (3, [3]), (4, [4]), (5, [4, 1]), (10, [4, 4, 2])],
)
def test_the_limit_truncates_inside_a_skip(limit: int, frames: list[int]) -> None:
    env = AtariEnv("Pong", max_episode_frames=limit, noop_max=0, seed=1)
    for _ in range(2):
        env.reset()
        steps = []
        truncated = False
        while not truncated:
            _, _, terminated, truncated, info = env.step(0)
            assert not terminated
            steps.append(info["frames"])
        assert steps == frames
        assert info["episode_frames"] == limit
        assert env.ale.getEpisodeFrameNumber() == limit


def test_no_ops_and_fire_count_against_the_limit_and_leave_a_frame() -> None:
    env = AtariEnv("Breakout", max_episode_frames=9, noop_max=7, fire_reset=True, seed=1)
    starts = set()
    for _ in range(40):
        _, info = env.reset()
        starts.add(info["episode_frames"])
        _, _, _, truncated, info = env.step(0)
        if not truncated:
            _, _, _, truncated, info = env.step(0)
        assert truncated
        assert info["episode_frames"] == 9
    # FIRE takes 4 frames, but where no-ops have left fewer.
    assert starts == {4, 5, 6, 7, 8}


def test_no_ops_are_uniform_from_0_to_the_largest_number() -> None:
    env = AtariEnv("Pong", noop_max=3, seed=1)
    frames = [env.reset()[1]["episode_frames"] for _ in range(400)]
    values, counts = np.unique(frames, return_counts=True)
    assert values.tolist() == [0, 1, 2, 3]
    # Expected 100 each; 5 standard deviations of a binomial count are 43.
    assert abs(counts - 100).max() < 43


def test_without_no_ops_a_reset_plays_none() -> None:
    env = AtariEnv("Pong", noop_max=0, seed=1)
    assert {env.reset()[1]["episode_frames"] for _ in range(5)} == {0}


def ball_in_play(env: AtariEnv) -> bool:
    return int(env.ale.getRAM()[101]) != 0  # Breakout's vertical position of the ball


def test_fire_starts_breakout_and_goes_on_after_each_life() -> None:
    env = AtariEnv("Breakout", fire_reset=True, noop_max=0, seed=1)
    env.reset()
    assert ball_in_play(env)
    lives = 5
    for _ in range(2000):
        _, _, terminated, _, info = env.step(0)
        if terminated:
            break
        if info["lives"] < lives:
            lives = info["lives"]
            assert info["life_lost"]
            # What is remembered must be the action that had the effect, not the one asked for.
            assert info["action_played"] == 0
            *_, info = env.step(0)
            assert env.get_action_meanings()[info["action_played"]] == "FIRE"
            assert ball_in_play(env)
    # Without FIRE the ball would rest after the first life, and the game never end.
    assert terminated
    assert lives == 1

    idle = AtariEnv("Breakout", noop_max=0, seed=1)
    idle.reset()
    for _ in range(100):
        idle.step(0)
    assert not ball_in_play(idle)


def test_fire_is_left_out_where_a_game_does_not_use_it() -> None:
    for full_action_set in (False, True):
        env = AtariEnv(
            "Freeway", fire_reset=True, full_action_set=full_action_set, noop_max=0, seed=1
        )
        assert env.reset()[1]["episode_frames"] == 0


def random_breakout(**options: Any) -> dict[str, float]:
    """A game of Breakout by the same random actions: what it came to."""
    env = AtariEnv("Breakout", noop_max=0, seed=1, **options)
    env.reset()
    random = np.random.default_rng(0)
    total = {"steps": 0.0, "score": 0.0, "learned": 0.0, "life_lost": 0.0}
    terminated = False
    while not terminated:
        _, reward, terminated, _, info = env.step(random.integers(4))
        total["steps"] += 1
        total["score"] += reward
        total["learned"] += info["learning_reward"]
        total["life_lost"] += info["life_lost"]
    assert info["lives"] == 0
    return total


def test_life_loss_modes_play_the_same_game_to_its_end() -> None:
    ignored = random_breakout(life_loss="ignore")
    assert ignored["score"] == ignored["learned"] > 0  # every brick hit was worth 1
    assert ignored["life_lost"] == 0
    assert random_breakout() == ignored | {"life_lost": 5}
    penalty = random_breakout(life_loss="penalty", life_loss_penalty=-0.5)
    assert penalty == ignored | {"learned": ignored["score"] - 2.5}


def test_a_counter_that_is_cleared_at_the_end_is_one_lost_life() -> None:
    env = AtariEnv("Amidar", life_loss="penalty", frame_skip=1, noop_max=0, seed=1)
    _, info = env.reset()
    lives = [info["lives"]]
    penalties = []
    terminated = False
    while not terminated:
        _, _, terminated, _, info = env.step(0)
        lives.append(info["lives"])
        if info["learning_reward"] < 0:
            penalties.append((lives[-2], lives[-1], info["learning_reward"]))
    # Amidar counts down from 11 and ends with its fourth life.
    assert penalties == [(11, 10, -1.0), (10, 9, -1.0), (9, 8, -1.0), (8, 0, -1.0)]


@pytest.mark.parametrize("game", ["Pong", "Boxing", "Freeway"])
def test_games_without_lives_lose_none(game: str) -> None:
    env = AtariEnv(game, seed=1)
    env.reset()
    for _ in range(300):
        info = env.step(env.action_space.sample())[4]
        assert info["lives"] == 0
        assert not info["life_lost"]


@pytest.mark.parametrize("game", ["Amidar", "DemonAttack", "Turmoil"])
def test_lives_that_rise_in_the_first_frames_are_not_lost(game: str) -> None:
    env = AtariEnv(game, frame_skip=1, noop_max=0, seed=1)
    _, info = env.reset()
    first = info["lives"]
    lives = [first]
    for _ in range(120):
        info = env.step(0)[4]
        assert info["life_lost"] == (info["lives"] < lives[-1])
        lives.append(info["lives"])
    assert lives[-1] > first


# -- Seeds ---------------------------------------------------------------------------------------


def rollout(env: AtariEnv, steps: int = 60) -> list[bytes]:
    frames = [env.reset()[0].tobytes()]
    for step in range(steps):
        frame, _, terminated, _, _ = env.step(step % 4)
        frames.append(frame.tobytes())
        if terminated:
            frames.append(env.reset()[0].tobytes())
    return frames


def test_the_same_seed_plays_the_same_game() -> None:
    options: dict[str, Any] = {"sticky_actions": 0.25}
    first = rollout(AtariEnv("Seaquest", seed=7, **options))
    assert rollout(AtariEnv("Seaquest", seed=7, **options)) == first
    assert rollout(AtariEnv("Seaquest", seed=8, **options)) != first

    env = AtariEnv("Seaquest", seed=8, **options)
    rollout(env)
    frame, _ = env.reset(seed=7)
    assert frame.tobytes() == first[0]
    env.reset(seed=8)
    env.step(0)
    seeded, _ = env.reset(seed=7)
    assert seeded.tobytes() == first[0]


@pytest.mark.parametrize("options", [{"noop_max": 0}, {"sticky_actions": 0.0}])
def test_either_source_of_chance_is_seeded(options: dict[str, Any]) -> None:
    """Sticky actions alone, and no-ops alone."""
    settings = {"sticky_actions": 0.25, **options}
    games = {seed: rollout(AtariEnv("Seaquest", seed=seed, **settings)) for seed in range(4)}
    assert all(
        games[seed] == rollout(AtariEnv("Seaquest", seed=seed, **settings)) for seed in games
    )
    assert len({tuple(frames) for frames in games.values()}) == 4


def test_without_a_seed_games_differ() -> None:
    games = {tuple(rollout(AtariEnv("Seaquest", sticky_actions=0.25))) for _ in range(3)}
    assert len(games) == 3


# -- Vectors -------------------------------------------------------------------------------------


def play(envs: VectorEnv, steps: int, seed: int = 0) -> list[tuple[bytes, ...]]:
    """Plays random actions; what every step returned, by array."""
    random = np.random.default_rng(seed)
    played = [(envs.reset().tobytes(),)]
    for _ in range(steps):
        step = envs.step(random.integers(envs.num_actions, size=envs.num_envs))
        played.append(
            tuple(
                np.asarray(array).tobytes()
                for array in (
                    step.frames,
                    step.rewards,
                    step.learning_rewards,
                    step.terminated,
                    step.truncated,
                    step.life_lost,
                    step.frames_used,
                )
            )
        )
        ended = np.flatnonzero(step.terminated | step.truncated)
        if ended.size:
            played.append((envs.reset(ended).tobytes(),))
    return played


def test_an_atari_vector_is_determined_by_its_seed() -> None:
    options = AtariOptions(sticky_actions=0.25)
    first = play(AtariVector("Breakout", 3, options, seed=5), 200)
    assert play(AtariVector("Breakout", 3, options, seed=5), 200) == first
    assert play(AtariVector("Breakout", 3, options, seed=6), 200) != first


def test_environments_of_a_vector_differ_pairwise() -> None:
    envs = AtariVector("Seaquest", 4, AtariOptions(sticky_actions=0.25), seed=0)
    envs.reset()
    for _ in range(30):
        frames = envs.step(np.full(4, 5)).frames
    assert len({frame.tobytes() for frame in frames}) == 4


def test_the_arrays_of_a_vector_have_their_types() -> None:
    envs = AtariVector("Pong", 2, AtariOptions(frame_shape=(42, 44)))
    assert envs.reset().shape == (2, 42, 44)
    assert envs.reset(np.array([1])).shape == (1, 42, 44)
    step = envs.step(np.zeros(2, np.int64))
    assert (step.frames.shape, step.frames.dtype) == ((2, 42, 44), np.uint8)
    assert (envs.frame_shape, envs.dtype) == ((42, 44), np.uint8)
    assert step.rewards.dtype == np.float64
    assert step.learning_rewards.dtype == np.float32
    assert step.terminated.dtype == step.truncated.dtype == step.life_lost.dtype == np.bool_
    assert step.frames_used.dtype == np.int64
    assert envs.protocol()["num_envs"] == 2
    assert json.loads(json.dumps(envs.protocol())) == envs.protocol()
    envs.close()


def test_nothing_is_reset_by_itself() -> None:
    options = AtariOptions(max_episode_frames=4, noop_max=0)
    envs = AtariVector("Pong", 2, options)
    envs.reset()
    assert envs.step(np.zeros(2, np.int64)).truncated.all()
    with pytest.raises(RuntimeError, match="reset"):
        envs.step(np.zeros(2, np.int64))
    envs.reset(np.array([0, 1]))
    assert envs.step(np.zeros(2, np.int64)).truncated.all()


@pytest.mark.parametrize(
    "make", [lambda n: AtariVector("Pong", n), lambda n: GymVector("CartPole-v1", n)]
)
def test_a_vector_needs_an_environment_and_an_action_for_each(make: Any) -> None:
    with pytest.raises(UserError, match="num_envs"):
        make(0)
    envs = make(2)
    envs.reset()
    with pytest.raises(ValueError, match="expected 2 actions, got 1"):
        envs.step(np.zeros(1, np.int64))


@pytest.mark.parametrize(
    ("env_ids", "error"),
    [([True, False], TypeError), ([0.0], TypeError), ([2], IndexError), ([-1], IndexError)],
)
def test_a_reset_names_environments_by_number(env_ids: Any, error: type[Exception]) -> None:
    for envs in (AtariVector("Pong", 2), GymVector("CartPole-v1", 2)):
        envs.reset()
        with pytest.raises(error, match="env_ids"):
            envs.reset(np.array(env_ids))
        assert len(envs.reset(np.array([], np.int64))) == 0


# -- Classic control -----------------------------------------------------------------------------


def test_cart_pole_is_gymnasiums() -> None:
    envs = GymVector("CartPole-v1", 2, seed=3)
    assert (envs.frame_shape, envs.dtype, envs.num_actions) == ((4,), np.float32, 2)
    seeds = [int(s.generate_state(1)[0]) for s in np.random.SeedSequence(3).spawn(2)]
    theirs = [gymnasium.make("CartPole-v1") for _ in range(2)]
    frames = envs.reset()
    for i, env in enumerate(theirs):
        assert np.array_equal(frames[i], env.reset(seed=seeds[i])[0])
    ends = 0
    for t in range(200):
        step = envs.step(np.array([t % 2, t % 3 % 2]))
        for i, env in enumerate(theirs):
            frame, reward, terminated, truncated, _ = env.step((t % 2, t % 3 % 2)[i])
            assert np.array_equal(step.frames[i], frame)
            assert step.rewards[i] == step.learning_rewards[i] == reward
            assert (step.terminated[i], step.truncated[i]) == (terminated, truncated)
            assert not step.life_lost[i]
            assert step.frames_used[i] == 1
            if terminated or truncated:
                ends += 1
                assert np.array_equal(envs.reset(np.array([i]))[0], env.reset()[0])
    assert ends > 2


def test_a_time_limit_truncates_at_the_real_final_observation() -> None:
    envs = GymVector("MountainCar-v0", 1)
    envs.reset()
    for t in range(200):
        step = envs.step(np.zeros(1, np.int64))
        assert step.truncated[0] == (t == 199)
    assert not step.terminated[0]
    final = step.frames.copy()
    assert not np.array_equal(envs.reset(), final)


def test_vectors_of_classic_control_are_seeded() -> None:
    first = play(GymVector("CartPole-v1", 3, seed=1), 100)
    assert play(GymVector("CartPole-v1", 3, seed=1), 100) == first
    assert play(GymVector("CartPole-v1", 3, seed=2), 100) != first
    frames = GymVector("CartPole-v1", 3, seed=1).reset()
    assert len({frame.tobytes() for frame in frames}) == 3


class Picture(gymnasium.Env[Any, Any]):
    """Pictures, actions from 3 on: spaces that CartPole does not have."""

    observation_space: gymnasium.Space[Any] = gymnasium.spaces.Box(0, 255, (5, 6), np.uint8)
    action_space: gymnasium.Space[Any] = gymnasium.spaces.Discrete(2, start=3)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.full((5, 6), 200, np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.full((5, 6), action, np.uint8), 0.5, False, False, {}


def test_a_function_makes_environments_too() -> None:
    envs = GymVector(Picture, 2)
    assert envs.dtype == np.uint8
    assert envs.protocol()["game"] == "Picture"
    assert envs.reset().tolist() == np.full((2, 5, 6), 200).tolist()
    step = envs.step(np.array([0, 1]))
    assert step.frames[:, 0, 0].tolist() == [3, 4]
    assert step.rewards.tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ("NoSuchEnv-v0", "NoSuchEnv"),
        ("Pendulum-v1", "Discrete"),
        ("Blackjack-v1", "Box"),
    ],
)
def test_unsupported_environments_are_refused(env: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        GymVector(env, 1)
    assert "\n" not in str(caught.value)


# -- Types ---------------------------------------------------------------------------------------


def test_a_game_has_the_same_defaults_alone_as_in_a_run() -> None:
    alone = {name: p.default for name, p in inspect.signature(AtariEnv).parameters.items()}
    options = dataclasses.asdict(AtariOptions())
    for name, value in Config().game_options().items():
        assert options[name] == alone[name] == value, name
    assert options["frame_shape"] == alone["frame_shape"]


def test_the_vectors_are_what_the_trainer_asks_for() -> None:
    # mypy compares the signatures; this fails where a member is missing.
    members = {name for name in dir(VectorEnv) if not name.startswith("_")}
    for envs in (AtariVector("Pong", 1), GymVector("CartPole-v1", 1)):
        assert members <= set(dir(envs))


def test_the_stepper_refuses_an_emulator_without_its_methods() -> None:
    with pytest.raises(AttributeError, match="act"):
        AtariStepper(object(), (0,), screen_shape=(210, 160))  # type: ignore[arg-type]
