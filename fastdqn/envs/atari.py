"""One Atari game with the preprocessing of the DQN papers.

The rules of a step are carried out by the compiled stepper alone (`fastdqn._rollout`); this module
chooses the settings, hands it an emulator whose own rules are off, and speaks gymnasium. Impossible
settings and games that cannot be played are refused at construction.

The rules:
- The action is repeated `frame_skip` times; the step stops early where the game ends or the frame
  limit is reached.
- The frame is the pixel-wise maximum of the step's last two screens (its only screen where it ran
  one frame), area-averaged. A reset's is its last screen alone.
- It truncates where the emulator's frames since the reset, no-ops and FIRE included, reach the
  limit.
- `sticky_actions` is the probability, at every frame and drawn anew, that the action which the
  frame before played is played instead (Machado et al. 2018); a new game starts with the no-op.
- A life is lost in a frame in which the number of lives falls, one however far: some games clear
  their counter at the end. `life_lost`: one was lost and `life_loss` is "terminal". With "penalty",
  `life_loss_penalty` is added to the learning reward for each, after clipping.
- With `fire_reset`, a reset plays FIRE for `frame_skip` frames after the no-ops, and the first step
  after a life loss plays it in place of the given action.
- A reset leaves at least one frame below the limit: no-ops and FIRE stop before it. Where the game
  ends during them, another is started without no-ops.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal

import ale_py
import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.envs.registration import EnvSpec

from fastdqn._rollout import AtariStepper
from fastdqn.envs.games import game_title, resolve_game, rom_path
from fastdqn.errors import UserError

__all__ = ["AtariEnv", "AtariGame", "AtariOptions"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AtariOptions:
    """How a game is played; `AtariEnv` explains the fields. The stepper checks the rest of them."""

    frame_skip: int = 4
    sticky_actions: float = 0.0
    full_action_set: bool = False
    noop_max: int = 30
    fire_reset: bool = False
    life_loss: Literal["terminal", "ignore", "penalty"] = "terminal"
    life_loss_penalty: float = -1.0
    reward_clip: Literal["sign", "clip", "none"] = "sign"
    reward_clip_at: Literal["step", "frame"] = "step"
    max_episode_frames: int = 108_000
    frame_shape: tuple[int, int] = (84, 84)

    def __post_init__(self) -> None:
        for name, least, most in (
            ("frame_skip", 1, 2**31 - 1),
            ("max_episode_frames", 1, 2**62),
            ("noop_max", 0, 2**31 - 1),
        ):
            value = getattr(self, name)
            if not isinstance(value, int) or not least <= value <= most:
                raise UserError(
                    f"{name} must be a whole number from {least} to {most}, got {value!r}"
                )
        if not math.isfinite(self.life_loss_penalty):
            raise UserError(f"life_loss_penalty must be finite, got {self.life_loss_penalty}")
        if not 0.0 <= self.sticky_actions <= 1.0:
            raise UserError(
                f"sticky_actions must be a probability, 0 to 1, got {self.sticky_actions}"
            )
        shape = self.frame_shape
        if (
            not isinstance(shape, tuple)
            or len(shape) != 2
            or not all(isinstance(size, int) and 1 <= size <= 2**15 for size in shape)
        ):
            raise UserError(f"frame_shape must be a height and a width in pixels, got {shape}")


class AtariGame:
    """One emulator under the stepper: what `AtariEnv` and `AtariVector` are made of.

    `watch` is shown the emulator after every frame.
    """

    def __init__(
        self,
        game: str,
        options: AtariOptions,
        seed: np.random.SeedSequence,
        watch: Callable[[ale_py.ALEInterface], None] | None = None,
    ) -> None:
        self.game = resolve_game(game)
        self.options = options
        self.ale = ale_py.ALEInterface()
        # The stepper's rules hold, so ALE's own are off.
        self.ale.setInt("frame_skip", 1)
        self.ale.setInt("max_num_frames_per_episode", 0)
        self.ale.setBool("truncate_on_loss_of_life", False)
        self.ale.setBool("color_averaging", False)
        # The action that sticks is no part of the emulator's saved state; the stepper has its own.
        self.ale.setFloat("repeat_action_probability", 0.0)
        self._load(seed)
        minimal = self.ale.getMinimalActionSet()
        actions = self.ale.getLegalActionSet() if options.full_action_set else minimal
        fires = options.fire_reset and ale_py.Action.FIRE in minimal
        self.action_meanings: tuple[str, ...] = tuple(action.name for action in actions)
        try:
            self.stepper = AtariStepper(
                self.ale if watch is None else _Watched(self.ale, watch),
                actions,
                screen_shape=self.ale.getScreenDims(),
                frame_shape=options.frame_shape,
                noop_action=ale_py.Action.NOOP,
                fire_action=ale_py.Action.FIRE if fires else None,
                frame_skip=options.frame_skip,
                sticky_actions=options.sticky_actions,
                life_loss=options.life_loss,
                life_loss_penalty=options.life_loss_penalty,
                reward_clip=options.reward_clip,
                reward_clip_at=options.reward_clip_at,
                max_episode_frames=options.max_episode_frames,
            )
        except ValueError as error:
            raise UserError(str(error)) from None
        self._seed_choices(seed)

    def seed(self, seed: np.random.SeedSequence) -> None:
        """Seeds the emulator, the sticky actions and the numbers of no-ops; a reset must follow."""
        self._load(seed)
        self._seed_choices(seed)

    def _load(self, seed: np.random.SeedSequence) -> None:
        emulator_seed = seed.generate_state(1)[0]
        self.ale.setInt("random_seed", int(emulator_seed >> 1))  # it must fit a positive int32
        self.ale.loadROM(rom_path(self.game))  # where the emulator takes up its seed

    def _seed_choices(self, seed: np.random.SeedSequence) -> None:
        _, noop_seed, sticky_seed = seed.generate_state(3)
        self._noops = np.random.default_rng(noop_seed)
        self.stepper.seed(int(sticky_seed))

    def reset(self, out: npt.NDArray[np.uint8]) -> None:
        """Starts a new game and writes its first frame to `out` [*frame_shape]."""
        self.stepper.reset(out, int(self._noops.integers(self.options.noop_max + 1)))

    def save_state(self) -> dict[str, Any]:
        """All that `load_state` needs to go on exactly, in another process too."""
        return {
            "emulator": self.ale.cloneState(include_rng=True).serialize(),
            "stepper": self.stepper.save_state(),
            "noops": dict(self._noops.bit_generator.state),
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state saved by the same game with the same options."""
        emulator = ale_py.ALEState(state["emulator"])
        # The emulator's state leaves something out that a frame settles in Q*bert and Tetris. What
        # it does not settle are pixels that are left over from the screen before: in Yars' Revenge
        # of the very next screen, in 3D Tic-Tac-Toe, which stops drawing while it thinks, of up to
        # seven.
        self.ale.restoreState(emulator)
        if not self.ale.game_over():
            self.ale.act(ale_py.Action.NOOP)
        self.ale.restoreState(emulator)
        self.stepper.load_state(state["stepper"])
        self._noops.bit_generator.state = state["noops"]

    def protocol(self) -> dict[str, object]:
        """What is played and how, in values that JSON can hold."""
        settings = asdict(self.options) | {"frame_shape": list(self.options.frame_shape)}
        return {
            "game": game_title(self.game),
            "emulator": f"ale-py {ale_py.__version__}",
            "num_actions": len(self.action_meanings),
            "action_meanings": list(self.action_meanings),
            **settings,
        }


class _Watched:
    """An emulator that is looked at after every frame."""

    def __init__(
        self, ale: ale_py.ALEInterface, watch: Callable[[ale_py.ALEInterface], None]
    ) -> None:
        self._ale = ale
        self._watch = watch

    def act(self, action: ale_py.Action) -> float:
        reward: float = self._ale.act(action)
        self._watch(self._ale)
        return reward

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ale, name)


class AtariEnv(gymnasium.Env[npt.NDArray[np.uint8], np.int64]):
    """An Atari game as a gymnasium environment; observations are uint8 [*frame_shape].

    game: any usual form of the name: "Breakout", "space_invaders", "ALE/Pong-v5".
    frame_skip: emulator frames for which a step repeats its action.
    sticky_actions: probability, at every frame, that the last frame's action is played instead.
    full_action_set: all 18 actions, not only those that the game uses.
    noop_max: a reset plays 0 to this many frames of no-ops, drawn uniformly.
    fire_reset: play FIRE at a reset, and in the first step after a life loss, in games that use it.
    life_loss: "terminal" ends what is learned from (`info["life_lost"]`) but not the game;
        "penalty" adds `life_loss_penalty` to the learning reward; "ignore" does neither.
    reward_clip: what becomes of a reward in `info["learning_reward"]`: its "sign", "clip" to
        [-1, 1], or "none", its value.
    reward_clip_at: clip the sum over the "step", or every "frame"'s reward before they are summed.
    max_episode_frames: emulator frames since the reset, no-ops included, that truncate a game.
    frame_shape: height and width of an observation in pixels, at most the screen's.
    seed: of the first reset; `reset(seed=...)` seeds anew.
    render_mode: None, or "rgb_array": the screen in the game's own colours.

    `terminated` is game over and nothing else, `truncated` the frame limit and nothing else; both
    may be true. The reward is raw. `info` has `lives`, `life_lost`, `frames` (emulator frames of
    the step), `episode_frames` and `learning_reward`.

    Raises UserError where the game is unknown or a setting impossible.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"]}  # noqa: RUF012 (gymnasium's own)

    def __init__(
        self,
        game: str,
        *,
        frame_skip: int = 4,
        sticky_actions: float = 0.0,
        full_action_set: bool = False,
        noop_max: int = 30,
        fire_reset: bool = False,
        life_loss: Literal["terminal", "ignore", "penalty"] = "terminal",
        life_loss_penalty: float = -1.0,
        reward_clip: Literal["sign", "clip", "none"] = "sign",
        reward_clip_at: Literal["step", "frame"] = "step",
        max_episode_frames: int = 108_000,
        frame_shape: tuple[int, int] = (84, 84),
        seed: int | None = None,
        render_mode: str | None = None,
    ) -> None:
        if render_mode not in (None, "rgb_array"):
            raise UserError(f"render_mode must be None or 'rgb_array', got {render_mode!r}")
        options = AtariOptions(
            frame_skip=frame_skip,
            sticky_actions=sticky_actions,
            full_action_set=full_action_set,
            noop_max=noop_max,
            fire_reset=fire_reset,
            life_loss=life_loss,
            life_loss_penalty=life_loss_penalty,
            reward_clip=reward_clip,
            reward_clip_at=reward_clip_at,
            max_episode_frames=max_episode_frames,
            frame_shape=frame_shape,
        )
        self._game = AtariGame(game, options, np.random.SeedSequence(seed))
        self.render_mode = render_mode
        self.metadata = {**self.metadata, "render_fps": 60 / frame_skip}
        self.action_space = gymnasium.spaces.Discrete(len(self._game.action_meanings))
        self.observation_space = gymnasium.spaces.Box(0, 255, frame_shape, np.uint8)
        self.spec = EnvSpec(
            id=f"fastdqn/{game_title(self._game.game)}-v0",
            entry_point="fastdqn.envs.atari:AtariEnv",
            kwargs={"game": self._game.game, "seed": seed, **asdict(options)},
        )

    @property
    def ale(self) -> ale_py.ALEInterface:
        """The emulator, to look at: to act on it breaks the count of the episode's frames."""
        return self._game.ale

    def protocol(self) -> dict[str, object]:
        """What is played and how: the game, its actions and every setting."""
        return self._game.protocol()

    def get_action_meanings(self) -> list[str]:
        """The names of the actions, in the order of the action space."""
        return list(self._game.action_meanings)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[npt.NDArray[np.uint8], dict[str, Any]]:
        """Starts a new game: from the same `seed` always the same one."""
        super().reset(seed=seed)
        if seed is not None:
            self._game.seed(np.random.SeedSequence(seed))
        frame = np.empty(self._game.options.frame_shape, dtype=np.uint8)
        self._game.reset(frame)
        return frame, self._info()

    def step(
        self, action: np.int64 | int
    ) -> tuple[npt.NDArray[np.uint8], float, bool, bool, dict[str, Any]]:
        """Plays `action` for one step; the returned array is the caller's own."""
        stepper = self._game.stepper
        frame = np.empty(self._game.options.frame_shape, dtype=np.uint8)
        stepper.step(operator.index(action), frame)
        return frame, stepper.reward, stepper.terminated, stepper.truncated, self._info()

    def render(self) -> npt.NDArray[np.uint8] | None:
        """The screen [height, width, 3] in the game's own colours."""
        return self._game.ale.getScreenRGB() if self.render_mode == "rgb_array" else None

    def _info(self) -> dict[str, Any]:
        stepper = self._game.stepper
        return {
            "action_played": stepper.action_played,
            "lives": stepper.lives,
            "life_lost": stepper.life_lost,
            "frames": stepper.frames_used,
            "episode_frames": stepper.episode_frames,
            "learning_reward": stepper.learning_reward,
        }
