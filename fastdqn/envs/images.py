"""Image observations of any gymnasium environment, made into frames as those of games are.

Such an environment is shown to the compiled stepper as an emulator, so the rules of a step are the
games' own: see `fastdqn.envs.atari`. What no environment has in general is left out: lives, no-ops,
FIRE. Grey is 0.299 red + 0.587 green + 0.114 blue, rounded.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt

from fastdqn._rollout import AtariStepper
from fastdqn.errors import UserError

__all__ = ["GymScreens", "final_observation", "grey_of", "is_image"]

_FRAME_SIDE = 84
_NO_LIMIT = 2**62  # an environment's own time limit is a wrapper of it

Image = npt.NDArray[np.uint8]

# In parts of 2^15, as whole numbers: the sum cannot depend on the order of a machine's additions.
_RED, _GREEN, _BLUE = 9798, 19235, 3735


def is_image(space: gymnasium.Space[Any]) -> bool:
    """Whether observations are images that can be preprocessed: uint8 [H, W], [H, W, 1 or 3]."""
    if not isinstance(space, gymnasium.spaces.Box) or space.dtype != np.uint8:
        return False
    return len(space.shape) == 2 or (len(space.shape) == 3 and space.shape[2] in (1, 3))


def grey_of(image: Image) -> Image:
    """[H, W] of an image [H, W], [H, W, 1] or [H, W, 3]."""
    if image.ndim == 2:
        return image
    if image.shape[2] == 1:
        return image[:, :, 0]
    red, green, blue = (image[:, :, channel].astype(np.uint32) for channel in range(3))
    return ((_RED * red + _GREEN * green + _BLUE * blue + 2**14) >> 15).astype(np.uint8)


class GymScreens:
    """One environment and the stepper that plays it; frames are at most 84 by 84 pixels.

    `watch` is told after every step of the environment. Raises `UserError` for sizes that cannot be
    averaged.
    """

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        *,
        frame_skip: int,
        reward_clip: str,
        reward_clip_at: str = "step",
        watch: Callable[[], None] | None = None,
    ) -> None:
        height, width = env.observation_space.shape[:2]  # type: ignore[index]
        actions: Any = env.action_space
        self.frame_shape = (min(height, _FRAME_SIDE), min(width, _FRAME_SIDE))
        self._emulator = _Emulator(env, (height, width), watch)
        try:
            self._stepper = AtariStepper(
                self._emulator,
                [np.int64(actions.start + action) for action in range(actions.n)],
                screen_shape=(height, width),
                frame_shape=self.frame_shape,
                frame_skip=frame_skip,
                reward_clip=reward_clip,  # type: ignore[arg-type]
                reward_clip_at=reward_clip_at,  # type: ignore[arg-type]
                max_episode_frames=_NO_LIMIT,
                life_loss="ignore",
            )
        except ValueError as error:
            raise UserError(f"images of {height} by {width} pixels: {error}") from None

    def reset(self, seed: int | None, out: Image) -> None:
        """Begins an episode and writes its first frame to `out` [*frame_shape]."""
        self._emulator.seed = seed
        self._stepper.reset(out)

    def step(self, action: int, out: Image) -> tuple[float, float, bool, bool, int]:
        """Plays a step and writes the frame reached to `out`; returns its reward, the reward to
        learn from, whether it terminated or truncated, and its frames."""
        stepper, emulator = self._stepper, self._emulator
        stepper.step(action, out)
        return (
            stepper.reward,
            stepper.learning_reward,
            emulator.terminated,
            emulator.truncated,
            stepper.frames_used,
        )


class _Emulator:
    """What the stepper asks of an emulator; the palette's numbers are the greys themselves."""

    def __init__(
        self,
        env: gymnasium.Env[Any, Any],
        shape: tuple[int, int],
        watch: Callable[[], None] | None,
    ) -> None:
        self.seed: int | None = None
        self.terminated = self.truncated = False
        self._env = env
        self._shape = shape
        self._watch = watch
        self._image: Any = None

    def reset_game(self) -> None:
        self._see(self._env.reset(seed=self.seed)[0])
        self.seed = None
        self.terminated = self.truncated = False

    def act(self, action: np.int64) -> float:
        image, reward, terminated, truncated, info = self._env.step(action)
        self.terminated, self.truncated = bool(terminated), bool(truncated)
        self._see(final_observation(info, image) if terminated or truncated else image)
        if self._watch is not None:
            self._watch()
        return float(reward)

    def game_over(self) -> bool:
        return self.terminated or self.truncated

    def lives(self) -> int:
        return 0

    def getScreen(self, buffer: Image) -> None:
        buffer[:] = grey_of(self._image)

    getScreenGrayscale = getScreen

    def _see(self, image: Any) -> None:
        image = np.asarray(image)
        if image.dtype != np.uint8 or image.shape[:2] != self._shape:
            raise ValueError(
                f"expected an image of uint8 and {self._shape[0]} by {self._shape[1]} pixels, got "
                f"{image.dtype} {image.shape}"
            )
        self._image = image


def final_observation(info: Any, reached: Any) -> Any:
    """The observation that an episode ended with: a wrapper that resets in the same step returns
    the next episode's first, and puts the other into `info`."""
    for name in ("final_obs", "final_observation"):
        if (final := info.get(name)) is not None:
            return final
    return reached
