"""Gymnasium's environments behind the trainer: images, spaces, limits, wrappers that reset."""

from __future__ import annotations

import importlib.util
import math
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import cv2
import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiBinary, MultiDiscrete
from gymnasium.wrappers import Autoreset

import fastdqn
from fastdqn import Config
from fastdqn.cli import train_main
from fastdqn.envs.classic import GymVector
from fastdqn.envs.images import grey_of
from fastdqn.envs.make import GYM_OPTIONS
from fastdqn.errors import UserError
from fastdqn.trainer import Trainer
from fastdqn.video import record

SHAPES = [(120, 100, 3), (120, 100, 1), (120, 100)]


class Pictures(gymnasium.Env[Any, Any]):
    """Random pictures, the same for the same seed; a game of `length` frames, each worth 0.5."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012
    render_mode = "rgb_array"

    def __init__(
        self, shape: tuple[int, ...] = (120, 100, 3), length: int = 6, start: int = 2
    ) -> None:
        self.observation_space = Box(0, 255, shape, np.uint8)
        self.action_space = Discrete(3, start=start)
        self.length = length
        self.played: list[int] = []
        self.shown: list[Any] = []

    def _picture(self) -> Any:
        self.shown.append(
            self.np_random.integers(0, 256, self.observation_space.shape, dtype=np.uint8)
        )
        return self.shown[-1]

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._picture(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.played.append(int(action))
        self.steps += 1
        return self._picture(), 0.5, False, self.steps == self.length, {}

    def render(self) -> Any:
        return np.full((120, 100, 3), 40 * self.steps, np.uint8)


def make_pictures() -> gymnasium.Env[Any, Any]:
    """By its name: `test_gym_envs:make_pictures`."""
    return Pictures()


def expected_frame(pictures: list[Any]) -> Any:
    """By OpenCV: the brighter of the last two in grey, area-averaged."""
    greys = [
        cv2.cvtColor(p, cv2.COLOR_RGB2GRAY)
        if p.ndim == 3 and p.shape[2] == 3
        else p.reshape(120, 100)
        for p in pictures[-2:]
    ]
    return cv2.resize(np.max(greys, axis=0), (84, 84), interpolation=cv2.INTER_AREA)


# -- Images --------------------------------------------------------------------------------------


def test_grey_is_opencvs() -> None:
    colours = np.random.default_rng(0).integers(0, 256, (500, 500, 3), dtype=np.uint8)
    assert np.array_equal(grey_of(colours), cv2.cvtColor(colours, cv2.COLOR_RGB2GRAY))
    corners = np.array([[[0, 0, 0], [255, 255, 255], [255, 0, 0], [0, 255, 0]]], np.uint8)
    assert grey_of(corners).tolist() == [[0, 255, 76, 150]]


@pytest.mark.parametrize("shape", SHAPES)
def test_images_in_grey(shape: tuple[int, ...]) -> None:
    """A step is a frame, rewards are their own, and one grey level is OpenCV's rounding."""
    made = Pictures(shape)
    envs = GymVector(lambda: made, 1, preprocess="grey")
    assert (envs.frame_shape, envs.dtype, envs.num_actions) == ((84, 84), np.uint8, 3)
    frames = envs.reset()
    assert np.abs(frames[0] - expected_frame(made.shown[-1:]).astype(int)).max() <= 1
    for t in range(6):
        step = envs.step(np.array([t % 3]))
        assert np.abs(step.frames[0] - expected_frame(made.shown[-1:]).astype(int)).max() <= 1
        assert (step.rewards[0], step.learning_rewards[0], step.frames_used[0]) == (0.5, 0.5, 1)
        assert (step.terminated[0], step.truncated[0]) == (False, t == 5)
    assert made.played == [2, 3, 4, 2, 3, 4]


@pytest.mark.parametrize("shape", SHAPES)
def test_images_as_in_games(shape: tuple[int, ...]) -> None:
    """Steps of 4 and 2 frames: the second ends with the episode, at its real last picture."""
    made = Pictures(shape)
    envs = GymVector(lambda: made, 1, preprocess="atari")
    envs.reset()
    for frames_used in (4, 2):
        step = envs.step(np.array([1]))
        assert np.abs(step.frames[0] - expected_frame(made.shown).astype(int)).max() <= 1
        assert (step.rewards[0], step.learning_rewards[0]) == (0.5 * frames_used, 1.0)
        assert step.frames_used[0] == frames_used
        assert (step.terminated[0], step.truncated[0]) == (False, frames_used == 2)
    assert made.played == [3] * 6
    envs.reset()
    assert not envs.step(np.array([0])).truncated[0]


def test_skipping_and_clipping_are_the_settings() -> None:
    envs = GymVector(Pictures, 1, preprocess="atari", frame_skip=3, reward_clip="none")
    envs.reset()
    step = envs.step(np.array([0]))
    assert (step.frames_used[0], step.learning_rewards[0]) == (3, 1.5)
    protocol = envs.protocol()
    assert (protocol["frame_skip"], protocol["image_shape"]) == (3, [120, 100, 3])


def test_small_images_keep_their_size() -> None:
    assert GymVector(lambda: Pictures((40, 100, 3)), 1, preprocess="grey").frame_shape == (40, 84)


def test_the_settings_of_a_game_that_images_have_are_named_alike() -> None:
    images = Config(env="x", preprocess="atari").options_without_use
    assert set(Config().game_options()) - set(images) == set(GYM_OPTIONS)


@pytest.mark.parametrize("skips", [False, True])
def test_an_agent_learns_from_images_plays_and_is_filmed(tmp_path: Path, skips: bool) -> None:
    config = Config(
        preprocess="atari" if skips else "grey", steps=40, learning_starts_steps=20, batch_size=4,
        replay_capacity=200, threads=1, out=str(tmp_path), evaluation_period_steps=20,
        evaluation_episodes=1,
    )  # fmt: skip
    *_, report = fastdqn.train(config, env_fn=Pictures)
    assert report.frames == (120 if skips else 40)  # games of 6 frames: steps of 4 and 2
    assert report.mean_score == 3
    agent = fastdqn.load_agent(report.folder)
    assert agent.frame_shape == (84, 84)
    games = fastdqn.evaluate(agent, episodes=2, env_fn=Pictures).games
    assert [(g.score, g.steps, g.frames) for g in games] == [(3, 2 if skips else 6, 6)] * 2
    import imageio_ffmpeg

    record(agent, tmp_path / "game.mp4", env_fn=Pictures)
    # Every frame is shown, those in the middle of a step as well.
    assert imageio_ffmpeg.count_frames_and_secs(str(tmp_path / "game.mp4")) == (6, 0.3)


def test_images_from_the_command_line(tmp_path: Path) -> None:
    arguments = (
        *("--env", "test_gym_envs:make_pictures", "--preprocess", "atari", "--steps", "40"),
        *("--learning-starts-steps", "20", "--replay-capacity", "200", "--threads", "1"),
        *("--workers", "1", "--evaluation-period-steps", "none"),
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", "fastdqn", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={"PYTHONPATH": str(Path(__file__).parent), "PATH": ""},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "preset default" in done.stdout
    words = " ".join(done.stdout.split())
    assert "preprocess=atari image_shape=120 100 3 frame_skip=4 reward_clip=sign" in words
    assert "frames 120" in done.stdout
    (run,) = (tmp_path / "runs").glob("*-0-*")
    # Whose state is unknown begins a new episode in a resumed run, which says so.
    resumed = subprocess.run(
        [sys.executable, "-m", "fastdqn", "--resume", str(run), "--steps", "60"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        env={"PYTHONPATH": str(Path(__file__).parent), "PATH": ""},
    )
    assert (resumed.returncode, resumed.stderr) == (0, "")
    assert "every environment begins a new episode: the state of Pictures" in resumed.stdout
    assert "done at step 60" in resumed.stdout


# -- Vectors -------------------------------------------------------------------------------------


def test_vectors_are_rescaled_by_their_bounds() -> None:
    plain, scaled = (GymVector("MountainCar-v0", 1, preprocess=p) for p in ("none", "rescale"))
    low, high = np.array([-1.2, -0.07]), np.array([0.6, 0.07])
    first, second = plain.reset(), scaled.reset()
    for _ in range(50):
        expected = 2 * (first - low) / (high - low) - 1
        assert second == pytest.approx(expected, abs=1e-6)  # float32
        first, second = (envs.step(np.array([2])).frames for envs in (plain, scaled))
    # Numbers without bounds stay.
    plain, scaled = (GymVector("CartPole-v1", 1, preprocess=p) for p in ("none", "rescale"))
    ratio = plain.reset() / scaled.reset()
    assert ratio[0] == pytest.approx([4.8, 1, 24 * math.pi / 180, 1], rel=1e-6)


@pytest.mark.parametrize(
    ("name", "numbers", "actions", "limit"),
    [("CartPole-v0", 4, 2, 200), ("Acrobot-v1", 6, 3, 500), ("MountainCar-v0", 2, 3, 200)],
)
def test_classic_control_runs(
    name: str, numbers: int, actions: int, limit: int, tmp_path: Path
) -> None:
    config = Config.preset(
        "classic", env=name, steps=250, learning_starts_steps=100, out=str(tmp_path),
        evaluation_period_steps=None,
    )  # fmt: skip
    trainer = Trainer(config)
    assert trainer.protocol["max_episode_steps"] == limit
    assert (trainer.envs.frame_shape, trainer.envs.num_actions) == ((numbers,), actions)
    *_, report = trainer.run()
    agent = fastdqn.load_agent(report.folder)
    (game,) = fastdqn.evaluate(agent, episodes=1).games
    assert 1 <= game.steps <= limit


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # which as errors crash Box2D's import
def test_lunar_lander_or_what_it_lacks() -> None:
    if not all(map(importlib.util.find_spec, ("Box2D", "pygame"))):
        with pytest.raises(UserError) as caught:
            GymVector("LunarLander-v3", 1)
        assert str(caught.value) == (
            "environment 'LunarLander-v3' cannot be made: Box2D or pygame is missing: pip install "
            '"gymnasium[box2d]" (where that cannot be built, pip install swig first)'
        )
        return
    envs = GymVector("LunarLander-v3", 1)
    assert (envs.frame_shape, envs.num_actions) == ((8,), 4)
    assert envs.reset().shape == envs.step(np.zeros(1, np.int64)).frames.shape == (1, 8)


# -- Refusals ------------------------------------------------------------------------------------


class Spaces(gymnasium.Env[Any, Any]):
    """Nothing but its spaces."""

    def __init__(self, observations: gymnasium.Space[Any], actions: gymnasium.Space[Any]) -> None:
        self.observation_space, self.action_space = observations, actions


VECTOR = Box(-1, 1, (3,), np.float32)


@pytest.mark.parametrize(
    ("observations", "actions", "preprocess", "message"),
    [
        (VECTOR, Box(-1, 1, (1,)), "none", "DQN needs Discrete"),
        (VECTOR, MultiDiscrete([2, 2]), "none", "DQN needs Discrete"),
        (VECTOR, MultiBinary(2), "none", "DQN needs Discrete"),
        (Discrete(5), Discrete(2), "none", "observations of Discrete.*expected a Box"),
        (Box(0, 255, (96, 96, 3), np.uint8), Discrete(2), "none", "--preprocess grey"),
        (Box(0, 255, (96, 96, 1), np.uint8), Discrete(2), "rescale", "--preprocess grey"),
        (Box(0, 255, (4, 84, 84), np.uint8), Discrete(2), "none", "height first"),
        (Box(0, 1, (96, 96, 3), np.float32), Discrete(2), "none", "height first"),
        (Box(0, 1, (96, 96, 3), np.float32), Discrete(2), "grey", "images of uint8"),
        (Box(0, 1, (5, 6), np.float32), Discrete(2), "none", "FlattenObservation"),
        (VECTOR, Discrete(2), "atari", "leave it out"),
        (Box(0, 255, (523, 523, 3), np.uint8), Discrete(2), "grey", "523 by 523 pixels: "),
    ],
)
def test_other_spaces_are_refused_in_one_line(
    observations: Any, actions: Any, preprocess: Any, message: str
) -> None:
    with pytest.raises(UserError, match=message) as caught:
        GymVector(lambda: Spaces(observations, actions), 1, preprocess=preprocess)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"game": "Pong", "preprocess": "grey"}, "games have their own preprocessing"),
        ({"env": "x", "frame_skip": 2}, "frame_skip=2: only a game.*or give preprocess='atari'"),
        ({"env": "x", "frame_skip": 2, "preprocess": "grey"}, "or give preprocess='atari'"),
        ({"env": "x", "noop_max": 2, "preprocess": "atari"}, "noop_max=2: only a game"),
    ],
)
def test_settings_without_use_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        Config(**settings)


def test_the_command_says_how_images_are_learned_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert train_main(["--env", "test_gym_envs:make_pictures", "--out", "none"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.count("\n") == 1
    assert "give preprocess='grey' (--preprocess grey)" in err


# -- Environments that reset by themselves -------------------------------------------------------


class Counting(gymnasium.Env[Any, Any]):
    """Counts: an episode's observations are 100 e, 100 e + 1, ..., and it ends after `length`."""

    observation_space = Box(-np.inf, np.inf, (1,), np.float32)
    action_space = Discrete(2)

    def __init__(self, length: int, truncates: bool) -> None:
        self.length, self.truncates, self.episode, self.steps = length, truncates, 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.episode += 1
        self.steps = 0
        return np.float32([100 * self.episode]), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        ends = self.steps == self.length
        frame = np.float32([100 * self.episode + self.steps])
        return frame, 1.0, ends and not self.truncates, ends and self.truncates, {}


class SameStep(gymnasium.Wrapper[Any, Any, Any, Any]):
    """Resets in the step that ends an episode, as vectors do in AutoresetMode.SAME_STEP."""

    def step(self, action: Any) -> Any:
        frame, reward, terminated, truncated, info = self.env.step(action)
        if terminated or truncated:
            final, (frame, _) = frame, self.env.reset()
            info = {"final_obs": final}
        return frame, reward, terminated, truncated, info


@pytest.mark.parametrize("wrap", [lambda env: env, Autoreset, SameStep])
@pytest.mark.parametrize("truncates", [False, True])
@pytest.mark.parametrize("n_step", [1, 3])
def test_a_reset_is_never_a_transition(wrap: Any, truncates: bool, n_step: int) -> None:
    """Every stored transition stays in its episode, and its last frame is the real one."""
    config = Config(
        stack=1, n_step=n_step, steps=60, learning_starts_steps=50, replay_capacity=500,
        num_envs=2, discount=1.0, out=None, threads=1,
    )  # fmt: skip
    trainer = Trainer(config, env_fn=lambda: wrap(Counting(5, truncates)))
    *_, report = trainer.run()
    memory = trainer.memory
    # Of 30 steps in each environment, six episodes of five.
    assert (report.steps, report.episodes, report.mean_score) == (60, 12, 5)
    assert len(memory) == 60
    batch = memory.gather(memory.valid_indices())
    states, following = batch.states.ravel(), batch.next_states.ravel()
    steps = following - states
    assert set(states % 100) == {0, 1, 2, 3, 4}
    left = 5 - states % 100
    assert np.array_equal(batch.rewards, np.minimum(left, n_step))
    bootstraps = truncates | (left > n_step)
    assert np.array_equal(batch.discounts > 0, bootstraps)
    assert np.array_equal(steps[bootstraps], np.minimum(left, n_step)[bootstraps])


@pytest.mark.parametrize("mode", list(gymnasium.vector.AutoresetMode))
def test_a_vector_of_environments_is_refused(mode: gymnasium.vector.AutoresetMode) -> None:
    def make() -> Any:
        return gymnasium.make_vec(
            "CartPole-v1", 2, vectorization_mode="sync", vector_kwargs={"autoreset_mode": mode}
        )

    with pytest.raises(UserError, match=r"is a vector of 2.*one environment, and num_envs=2"):
        GymVector(make, 1)
    with pytest.raises(UserError, match=r"expected a gymnasium\.Env, got int"):
        GymVector(lambda: 3, 1)  # type: ignore[arg-type, return-value]


def test_an_older_version_is_made_without_a_warning() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        GymVector("CartPole-v0", 1)
