"""Videos: what is in them, looked at picture by picture."""

from __future__ import annotations

import re
import subprocess
import tracemalloc
from pathlib import Path
from typing import Any

import imageio_ffmpeg
import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from small_envs import FixedLength

from fastdqn.agent import Agent
from fastdqn.config import Config
from fastdqn.envs.atari import AtariEnv
from fastdqn.errors import UserError
from fastdqn.evaluation import evaluate
from fastdqn.networks import build_network
from fastdqn.video import record


def agent_for(game: str, num_actions: int, **settings: Any) -> Agent:
    config = Config(game=game, **settings)
    torch.manual_seed(0)
    return Agent(
        build_network((84, 84), num_actions, **config.network_options()),
        config,
        frame_shape=(84, 84),
        dtype="uint8",
        num_actions=num_actions,
        protocol={"game": game, "action_meanings": [f"ACTION{i}" for i in range(num_actions)]},
        device=torch.device("cpu"),
    )


def pictures(path: Path) -> tuple[NDArray[np.uint8], float]:
    """All pictures of a video, and how many a second are shown."""
    ffmpeg = [imageio_ffmpeg.get_ffmpeg_exe(), "-i", str(path)]
    about = subprocess.run(ffmpeg, capture_output=True, text=True).stderr
    size = re.search(r"Video: .* (\d+)x(\d+)[ ,]", about)
    rate = re.search(r"([\d.]+) fps", about)
    assert size, about
    assert rate, about
    raw = ["-fps_mode", "passthrough", "-f", "rawvideo", "-pix_fmt", "rgb24", "-"]
    found = subprocess.run([*ffmpeg, *raw], capture_output=True, check=True).stdout
    frames = np.frombuffer(found, np.uint8).reshape(-1, int(size[2]), int(size[1]), 3)
    return frames, float(rate[1])


CHOSEN, RANDOM = (240, 180, 60), (220, 100, 80)


def bar(picture: NDArray[np.uint8], colour: tuple[int, int, int]) -> NDArray[np.intp]:
    """The rows in which there is a long run of this colour, beside the screen."""
    near = np.abs(picture[:, 320:].astype(int) - colour).max(-1) < 24
    return np.flatnonzero(near.sum(1) > 40)


def test_every_frame_is_there_in_the_games_own_colours(tmp_path: Path) -> None:
    agent = agent_for("Breakout", 4, noop_max=0)
    path = tmp_path / "game.mp4"
    found = record(agent, path, max_frames=120, epsilon=0.3, seed=4)
    assert found == evaluate(agent, 1, 120, epsilon=0.3, seed=4)
    frames, rate = pictures(path)
    assert rate == 60
    assert frames.shape == (120, 420, 620, 3)

    # The same game, played by hand.
    env = AtariEnv("Breakout", noop_max=0, render_mode="rgb_array")
    env.reset(seed=0)
    screen = env.render()
    assert screen is not None
    wall = np.unique(screen[60:95].reshape(-1, 3), axis=0)
    small = frames[10, ::2, 0:320:2].astype(int)
    shown = small[60:95].reshape(-1, 1, 3)
    # Within what the encoder may lose.
    assert np.abs(shown - wall.astype(int)).max(-1).min(1).max() < 24


def test_the_chosen_action_is_marked(tmp_path: Path) -> None:
    agent = agent_for("Pong", 6)
    path = tmp_path / "game.mp4"
    record(agent, path, max_frames=40, epsilon=0.0)
    greedy, _ = pictures(path)
    assert all(len(bar(picture, CHOSEN)) > 10 for picture in greedy[-20:])
    record(agent, path, max_frames=400, epsilon=1.0)
    random, _ = pictures(path)
    assert sum(len(bar(picture, RANDOM)) > 0 for picture in random) > 40


def test_memory_is_flat(tmp_path: Path) -> None:
    agent = agent_for("Breakout", 4)
    record(agent, tmp_path / "warm.mp4", max_frames=40)
    peaks = []
    for frames in (100, 600):
        tracemalloc.start()
        record(agent, tmp_path / "game.mp4", max_frames=frames)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] - peaks[0] < 1_000_000  # a picture alone is 780 kB


def test_a_gif(tmp_path: Path) -> None:
    path = tmp_path / "game.gif"
    record(agent_for("Breakout", 4, noop_max=0), path, max_frames=60)
    frames, rate = pictures(path)
    assert rate == 50
    assert frames.shape == (50, 420, 620, 3)


class Shown(FixedLength):
    """Shows its step number as a grey picture of odd sizes."""

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012

    def __init__(self, render_mode: str | None = "rgb_array") -> None:
        super().__init__(10)
        self.render_mode = render_mode

    def render(self) -> Any:
        return np.full((401, 501, 3), 20 * self._steps, np.uint8)


def shown_agent() -> Agent:
    config = Config.preset("classic")
    return Agent(
        build_network((2,), 2, **config.network_options()),
        config,
        frame_shape=(2,),
        dtype="float32",
        num_actions=2,
        protocol={"game": "Shown"},
        device=torch.device("cpu"),
    )


def test_any_environment_that_renders(tmp_path: Path) -> None:
    path = tmp_path / "game.mp4"
    found = record(shown_agent(), path, episodes=2, env_fn=Shown)
    assert [game.steps for game in found.games] == [10, 10]
    frames, rate = pictures(path)
    assert rate == 20
    assert frames.shape == (20, 400, 800, 3)
    grey = frames[:, 200, 250].astype(int).mean(-1)
    assert np.abs(grey - [20 * step for step in [*range(1, 11)] * 2]).max() < 8


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("game.avi", {}, "expected a name that ends in .mp4 or .gif"),
        ("game", {}, "expected a name that ends in .mp4 or .gif"),
        ("nowhere/game.mp4", {}, "there is no folder"),
        ("game.mp4", {"env_fn": lambda: Shown(None)}, "made with render_mode='rgb_array'"),
        ("folder.mp4", {}, "cannot be written"),
    ],
)
def test_what_cannot_be_filmed(
    tmp_path: Path, name: str, options: dict[str, Any], message: str
) -> None:
    (tmp_path / "folder.mp4").mkdir()
    with pytest.raises(UserError, match=message) as caught:
        record(shown_agent(), tmp_path / name, **{"env_fn": Shown, **options})
    assert "\n" not in str(caught.value)
