"""Videos of a trained agent: the screen and, beside it, what the agent thinks of each action.

It needs no display, and no more memory for a long game than for a short one: pictures go to the
encoder one by one.
"""

from __future__ import annotations

import math
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

import imageio_ffmpeg
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from fastdqn.agent import Agent
from fastdqn.envs.make import EnvFunction
from fastdqn.envs.vector import VectorEnv
from fastdqn.envs.watched import WatchedEnvs
from fastdqn.errors import UserError
from fastdqn.evaluation import Play, evaluate
from fastdqn.scores import Evaluation

__all__ = ["record"]

_LEAST_HEIGHT = 400
_PANEL_WIDTH = 300
_INK, _DIM, _PAPER = (232, 232, 232), (150, 150, 150), (24, 24, 28)
_BAR, _CHOSEN, _RANDOM = (86, 110, 140), (240, 180, 60), (220, 100, 80)

# A viewer shows a GIF's picture for a whole number of hundredths of a second, at least two of them;
# each picture gets its own 256 colours, since there is nothing to look ahead to.
_GIF_FILTER = (
    "fps=50,split[a][b];[a]palettegen=stats_mode=single[p];[b][p]paletteuse=new=1:dither=none"
)
_FORMATS = {
    ".mp4": (
        *("-c:v", "libx264", "-preset", "veryfast", "-crf", "18", "-pix_fmt", "yuv420p"),
        *("-movflags", "+faststart"),
    ),
    ".gif": ("-c:v", "gif", "-vf", _GIF_FILTER),
}


def record(
    agent: Agent,
    path: Path,
    episodes: int | None = 1,
    max_frames: int | None = None,
    *,
    max_episode_frames: int | None = None,
    epsilon: float | None = None,
    seed: int = 0,
    env_fn: EnvFunction | None = None,
    **options: Any,
) -> Evaluation:
    """`evaluate`, one game after another, on video: the same games as there.

    `path` ends in .mp4 or .gif. What `env_fn` makes must have render_mode="rgb_array". Raises
    `UserError` as `evaluate` does, and where the file cannot be written.
    """
    config = agent.config
    limit = config.max_episode_frames if max_episode_frames is None else max_episode_frames
    envs = WatchedEnvs(
        env_fn or config.env,
        config.game,
        **{**config.env_options(), "max_episode_frames": limit},
    )
    with _Recorder(path, envs, str(agent.protocol["game"]), _action_names(agent)) as recorder:
        return evaluate(
            agent,
            episodes,
            max_frames,
            max_episode_frames=max_episode_frames,
            epsilon=epsilon,
            seed=seed,
            spectator=recorder,
            **options,
        )


def _action_names(agent: Agent) -> list[str]:
    names = agent.protocol.get("action_meanings") or range(agent.num_actions)
    return [str(name) for name in names]


class _Recorder:
    """A spectator that films."""

    def __init__(self, path: Path, envs: WatchedEnvs, title: str, actions: Sequence[str]) -> None:
        if path.suffix.lower() not in _FORMATS:
            raise UserError(f"{path}: expected a name that ends in {' or '.join(_FORMATS)}")
        if not path.parent.is_dir():
            raise UserError(f"{path}: cannot be written: there is no folder {path.parent}")
        self._path = path
        self._envs = envs
        self._title = title
        self._actions = actions
        self._encoder: _Encoder | None = None
        self._panel: _Panel | None = None
        self._picture: NDArray[np.uint8] | None = None
        self._scale = 1

    def __enter__(self) -> _Recorder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._encoder is not None:
            self._encoder.close()

    def make(self, seed: int) -> VectorEnv:
        """See `Spectator.make`."""
        return self._envs.make(seed)

    def see(self, play: Play, values: NDArray[np.float32], action: int) -> None:
        """See `Spectator.see`."""
        for place, screen in enumerate(self._envs.take()):
            if self._encoder is None or self._panel is None or self._picture is None:
                self._open(screen.shape[0], screen.shape[1])
            assert self._encoder is not None
            assert self._panel is not None
            assert self._picture is not None
            width = self._picture.shape[1] - _PANEL_WIDTH
            if place == 0:
                self._picture[:, width:] = self._panel.draw(play, values, action)
            large = screen.repeat(self._scale, axis=0).repeat(self._scale, axis=1)
            # Encoders want even sizes: an odd screen loses a row or a column.
            self._picture[:, :width] = large[: len(self._picture), :width]
            self._encoder.add(self._picture)

    def _open(self, height: int, width: int) -> None:
        self._scale = math.ceil(_LEAST_HEIGHT / height)
        height, width = (size * self._scale // 2 * 2 for size in (height, width))
        self._panel = _Panel(height, self._title, self._actions)
        self._picture = np.zeros((height, width + _PANEL_WIDTH, 3), np.uint8)
        self._encoder = _Encoder(self._path, self._picture, self._envs.frames_per_second)


class _Encoder:
    """An ffmpeg that pictures like the given one are sent to, one by one."""

    def __init__(self, path: Path, picture: NDArray[np.uint8], frames_per_second: float) -> None:
        self._path = path
        height, width, _ = picture.shape
        source = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}"]
        self._process = subprocess.Popen(
            [
                *(imageio_ffmpeg.get_ffmpeg_exe(), "-y", "-loglevel", "error", *source),
                *("-r", f"{frames_per_second:g}", "-i", "-", "-an"),
                *(*_FORMATS[path.suffix.lower()], f"file:{path}"),
            ],
            stdin=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # Ctrl-C is for the command, which then closes this in order
        )

    def add(self, picture: NDArray[np.uint8]) -> None:
        """Send one more."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(picture.data)
        except BrokenPipeError:
            self.close()

    def close(self) -> None:
        """No more follow. Raises `UserError` where the file could not be written."""
        _, said = self._process.communicate()
        if self._process.returncode != 0:
            lines = said.decode(errors="replace").strip().splitlines() or ["ffmpeg has ended"]
            raise UserError(f"{self._path}: cannot be written: {lines[0]}")


class _Panel:
    """The picture beside the screen: the score, and a bar for the value of each action.

    Bars share one axis, from the lowest to the highest value seen so far.
    """

    def __init__(self, height: int, title: str, actions: Sequence[str]) -> None:
        self._size = (_PANEL_WIDTH, height)
        self._title = title
        self._actions = actions
        self._low, self._high = math.inf, -math.inf
        self._row = min(30, (height - 120) // len(actions))
        self._font = ImageFont.load_default(size=max(8, min(14, self._row - 4)))
        self._large = ImageFont.load_default(size=18)

    def draw(self, play: Play, values: NDArray[np.float32], action: int) -> NDArray[np.uint8]:
        """[height, width, 3]."""
        image = Image.new("RGB", self._size, _PAPER)
        draw = ImageDraw.Draw(image)
        draw.text((16, 12), self._title, _INK, self._large)
        draw.text((16, 40), f"score {play.score:,.6g}", _INK, self._large)
        draw.text((16, 68), f"frame {play.frames:,}", _DIM, self._font)
        draw.text((_PANEL_WIDTH - 16, 90), "value", _DIM, self._font, anchor="ra")
        self._low = min(self._low, float(values.min()))
        self._high = max(self._high, float(values.max()))
        span = max(self._high - self._low, 1e-9)
        left, right = 16 + self._name_width(), _PANEL_WIDTH - 78
        best = int(values.argmax())
        for number, (name, value) in enumerate(zip(self._actions, values.tolist(), strict=True)):
            top = 112 + number * self._row
            middle = top + self._row // 2
            chosen = number == action
            colour = (_CHOSEN if action == best else _RANDOM) if chosen else _BAR
            length = max(2.0, (value - self._low) / span * (right - left))
            draw.rectangle((left, top + 3, left + length, top + self._row - 3), colour)
            ink = colour if chosen else _INK
            draw.text((16, middle), name.replace("_", " "), ink, self._font, anchor="lm")
            draw.text((_PANEL_WIDTH - 16, middle), f"{value:,.3f}", ink, self._font, anchor="rm")
        if action != best:
            bottom = 112 + len(self._actions) * self._row
            draw.text((16, bottom), "explores", _RANDOM, self._font)
        return np.asarray(image)

    def _name_width(self) -> int:
        longest = max(self._font.getlength(name.replace("_", " ")) for name in self._actions)
        return min(int(longest) + 12, 120)
