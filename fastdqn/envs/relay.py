"""A game that is started anew while the one before it is still played."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from fastdqn.envs.atari import AtariGame

__all__ = ["AtariRelay"]


class AtariRelay:
    """Two emulators of one game in turns: while one plays, the other can start its next game.

    A start takes as long as a dozen steps, nearly all of it inside the emulator. Whoever has time
    to spare calls `prepare`; what nobody has prepared, `reset` does. Nothing depends on that: each
    emulator has a seed of its own and plays every second game.
    """

    def __init__(
        self, make: Callable[[np.random.SeedSequence], AtariGame], seed: np.random.SeedSequence
    ) -> None:
        self.playing = make(seed)
        """The one that steps."""
        self._waiting: AtariGame | None = None  # made when first needed
        self._make_waiting = partial(make, seed.spawn(1)[0])
        self._first_frame = np.empty(self.playing.options.frame_shape, np.uint8)
        self._has_begun = False
        self.is_ready = False
        """Whether the next game has been started."""

    def prepare(self) -> bool:
        """Starts the next game, if one is played and the next has not been; whether it did."""
        if self.is_ready or not self._has_begun:
            return False
        self._waiting = self._waiting or self._make_waiting()
        self._waiting.reset(self._first_frame)
        self.is_ready = True
        return True

    def reset(self, out: npt.NDArray[np.uint8]) -> None:
        """Goes on to the next game and writes its first frame to `out` [*frame_shape]."""
        if not self._has_begun:
            self.playing.reset(out)
            self._has_begun = True
            return
        self.prepare()
        assert self._waiting is not None
        out[:] = self._first_frame
        self.playing, self._waiting, self.is_ready = self._waiting, self.playing, False

    def save_state(self) -> dict[str, Any]:
        """All that `load_state` needs to go on exactly, in another process too.

        The next game is started for it, so that the state is the same whoever had time before.
        """
        self.prepare()
        return {
            "playing": self.playing.save_state(),
            "waiting": self._waiting and self._waiting.save_state(),
            "first_frame": self._first_frame.copy(),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state saved by the same game with the same options.

        Raises `ValueError` for what is none.
        """
        try:
            self.playing.load_state(state["playing"])
            begun = state["waiting"] is not None
            if begun:
                self._waiting = self._waiting or self._make_waiting()
                self._waiting.load_state(state["waiting"])
                self._first_frame[:] = state["first_frame"]
            else:
                self._waiting = None
        except (LookupError, TypeError, SystemError, RuntimeError) as error:  # ale-py's, too
            what = " ".join(f"{type(error).__name__}: {error}".split())
            raise ValueError(f"not a state of this game: {what}") from error
        self._has_begun = self.is_ready = begun
