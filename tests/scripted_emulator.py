"""A stand-in for ale_py.ALEInterface that plays a script: what each frame shows, pays and ends.

It refuses what the real emulator refuses or leaves undefined, so that a stepper cannot get away
with it: a frame played after the game has ended, a screen buffer of another shape or dtype.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

# Two palette numbers for each of 128 greys, in no order: brighter is not a greater number.
GREY_OF_PALETTE = np.array([(number // 2 * 151 + 255) % 256 for number in range(256)], np.uint8)


@dataclass(frozen=True)
class ScriptedFrame:
    """What one emulator frame does. `screen` holds palette numbers."""

    screen: NDArray[np.uint8]
    reward: int = 0
    lives: int = 3
    game_over: bool = False


class ScriptedEmulator:
    """Plays one script a game, each reset the next one, in a circle.

    A script that has run out goes on with its last screen and lives, no reward and no end.
    `played` lists the actions of all frames, with None for each reset.
    """

    def __init__(
        self,
        games: Sequence[Sequence[ScriptedFrame]],
        first_frame: ScriptedFrame,
        *,
        grey_of_palette: NDArray[np.uint8] = GREY_OF_PALETTE,
    ) -> None:
        self._games = games
        self._grey_of_palette = grey_of_palette
        self._first = first_frame
        self._game = -1
        self._position = 0
        self._now = first_frame
        self._frame_number = 0
        self.played: list[Any] = []

    def reset_game(self) -> None:
        self.played.append(None)
        self._game = (self._game + 1) % len(self._games)
        self._position = 0
        self._now = self._first

    def act(self, action: Any) -> int:
        if self._game < 0:
            raise AssertionError("a frame was played before the first reset")
        if self._now.game_over:
            raise AssertionError("a frame was played after the game had ended")
        script = self._games[self._game]
        if self._position < len(script):
            self._now = script[self._position]
        else:
            self._now = ScriptedFrame(self._now.screen, lives=self._now.lives)
        self._position += 1
        self._frame_number += 1
        self.played.append(action)
        return self._now.reward

    def game_over(self) -> bool:
        return self._now.game_over

    def lives(self) -> int:
        return self._now.lives

    def getScreenDims(self) -> tuple[int, int]:
        height, width = self._first.screen.shape
        return height, width

    def getScreen(self, buffer: NDArray[np.uint8] | None = None) -> NDArray[np.uint8] | None:
        return self._shown(self._now.screen, buffer)

    def getScreenGrayscale(
        self, buffer: NDArray[np.uint8] | None = None
    ) -> NDArray[np.uint8] | None:
        return self._shown(self._grey_of_palette[self._now.screen], buffer)

    def getEpisodeFrameNumber(self) -> int:
        return self._position

    def getFrameNumber(self) -> int:
        return self._frame_number

    @staticmethod
    def _shown(
        screen: NDArray[np.uint8], buffer: NDArray[np.uint8] | None
    ) -> NDArray[np.uint8] | None:
        if buffer is None:
            return screen.copy()
        view: NDArray[Any] = np.asarray(buffer)
        if view.dtype != np.uint8 or view.shape != screen.shape or not view.flags.c_contiguous:
            raise TypeError(f"a screen buffer of {view.dtype} {view.shape}")
        view[...] = screen
        return None
