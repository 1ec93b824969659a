"""Any gymnasium environment with discrete actions behind the trainer's interface.

The environments run one after another in this process. Observations must be a Box: vectors, or
images, which `fastdqn.envs.images` makes frames of where that is asked for. uint8 stays uint8,
everything else becomes float32. Other spaces are refused, and so are vectors of environments, which
reset by themselves. Only the states of environments whose every field is known here are saved.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from difflib import get_close_matches
from typing import Any, Literal

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.envs.classic_control import AcrobotEnv, CartPoleEnv, MountainCarEnv
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

from fastdqn.envs.images import GymScreens, final_observation, is_image
from fastdqn.envs.vector import (
    SerialVector,
    StateNotSaved,
    StepResult,
    checked_ids,
    spawn_seeds,
    states_of_all,
)
from fastdqn.errors import UserError

__all__ = ["GymVector", "make_gym"]

# All that decides what follows in each, beside the generator; the two without are checks. The state
# of any other class is not known to be complete.
_STATE_FIELDS: dict[type, tuple[str, ...]] = {
    CartPoleEnv: ("state", "steps_beyond_terminated"),
    MountainCarEnv: ("state",),
    AcrobotEnv: ("state",),
    TimeLimit: ("_elapsed_steps",),
    OrderEnforcing: (),
    PassiveEnvChecker: (),
}


Preprocess = Literal["none", "rescale", "grey", "atari"]


class GymVector(SerialVector):
    """N gymnasium environments, made by an id, by a function that makes one, or by the name under
    which such a function can be imported: "my_module:make_env".

    preprocess: what becomes of observations. "rescale": the numbers of vectors that have finite
        bounds go from those to [-1, 1]. "grey": images, uint8 [H, W], [H, W, 1] or [H, W, 3], are
        made grey and averaged to at most 84 by 84 pixels. "atari": a step is a game's as well:
        `frame_skip` frames, or fewer where the episode ends, of whose last two the brighter of each
        two pixels is taken, and whose rewards are clipped to be learned from. "none", and "rescale"
        for images: they stay what they are, which only [H, W] can.
    share: see `AtariVector`. watch: is told after every frame.

    Each environment is seeded once, at its first reset, from its own child of `seed`. Without
    "atari", rewards are learned from as they are, and a step is one frame.

    Raises UserError where the name is unknown or a space is not supported.
    """

    def __init__(
        self,
        env: str | Callable[[], gymnasium.Env[Any, Any]],
        num_envs: int,
        *,
        seed: int = 0,
        preprocess: Preprocess = "none",
        frame_skip: int = 4,
        reward_clip: Literal["sign", "clip", "none"] = "sign",
        reward_clip_at: Literal["step", "frame"] = "step",
        share: range | None = None,
        watch: Callable[[], None] | None = None,
    ) -> None:
        seeds = spawn_seeds(seed, num_envs, share)
        self._envs = [make_gym(env) for _ in seeds]
        self._seeds: list[int | None] = [int(child.generate_state(1)[0]) for child in seeds]
        self._name = env if isinstance(env, str) else _name(self._envs[0])
        observations, self.num_actions = _checked_spaces(self._envs[0], self._name, preprocess)
        self.num_envs = len(self._envs)
        self._protocol: dict[str, object] = {}
        self._players: list[GymScreens] | list[_Plain]
        if preprocess in ("none", "rescale"):
            players = [_Plain(made, preprocess == "rescale", watch) for made in self._envs]
            self._players, self.frame_shape = players, observations.shape
            self._protocol = {"preprocess": preprocess}
        else:
            rules: dict[str, Any] = {"frame_skip": 1, "reward_clip": "none"}
            if preprocess == "atari":
                rules = {
                    "frame_skip": frame_skip,
                    "reward_clip": reward_clip,
                    "reward_clip_at": reward_clip_at,
                }
            screens = [GymScreens(made, **rules, watch=watch) for made in self._envs]
            self._players, self.frame_shape = screens, screens[0].frame_shape
            self._protocol = {"preprocess": preprocess, "image_shape": list(observations.shape)}
            self._protocol |= rules
        self.dtype = np.dtype(np.uint8 if observations.dtype == np.uint8 else np.float32)
        self._result = StepResult.zeros(self.num_envs, self.frame_shape, self.dtype)

    def protocol(self) -> dict[str, object]:
        """See `VectorEnv.protocol`."""
        spec = self._envs[0].spec
        return {
            "num_envs": self.num_envs,
            "workers": 0,
            "game": self._name,
            "num_actions": self.num_actions,
            "max_episode_steps": None if spec is None else spec.max_episode_steps,
            **self._protocol,
            "frame_shape": list(self.frame_shape),
            "dtype": self.dtype.name,
        }

    def reset(self, env_ids: npt.NDArray[np.int64] | None = None) -> npt.NDArray[Any]:
        """See `VectorEnv.reset`."""
        ids = checked_ids(env_ids, self.num_envs)
        frames = np.empty((len(ids), *self.frame_shape), self.dtype)
        for i, env_id in enumerate(ids):
            self._players[env_id].reset(self._seeds[env_id], frames[i])
            self._seeds[env_id] = None
        return frames

    def step(self, actions: npt.NDArray[np.int64]) -> StepResult:
        """See `VectorEnv.step`."""
        result = self._result
        if len(actions) != self.num_envs:
            raise ValueError(f"expected {self.num_envs} actions, got {len(actions)}")
        result.actions[:] = actions
        for i, action in enumerate(actions.tolist()):
            (
                result.rewards[i],
                result.learning_rewards[i],
                result.terminated[i],
                result.truncated[i],
                result.frames_used[i],
            ) = self._players[i].step(action, result.frames[i])
        return result

    def save_state(self) -> dict[str, Any]:
        """See `VectorEnv.save_state`."""
        states = [_state(env) for env in self._envs]
        for state, seed in zip(states, self._seeds, strict=True):
            state["seed"] = seed
        return {"envs": states}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """See `VectorEnv.load_state`."""
        for i, saved in enumerate(states_of_all(state, self.num_envs)):
            _restore(self._envs[i], saved)
            self._seeds[i] = saved["seed"]

    def close(self) -> None:
        """See `VectorEnv.close`."""
        for env in self._envs:
            env.close()


def make_gym(
    env: str | Callable[[], gymnasium.Env[Any, Any]], **options: Any
) -> gymnasium.Env[Any, Any]:
    """The environment of this name, with gymnasium's `options`, or what the function makes.

    Raises UserError where there is none of that name, where it lacks a package, or where something
    else than an environment is made.
    """
    name = repr(env) if isinstance(env, str) else f"that {env!r} makes"
    try:
        made = env() if not isinstance(env, str) else _make_named(env, options)
    except gymnasium.error.DependencyNotInstalled as error:
        message = _line(error)
        if "box2d" in message.lower():
            message = (
                'Box2D or pygame is missing: pip install "gymnasium[box2d]" (where that cannot be '
                "built, pip install swig first)"
            )
        raise UserError(f"environment {name} cannot be made: {message}") from None
    except (gymnasium.error.Error, ImportError) as error:
        like = get_close_matches(str(env), gymnasium.registry, 1)
        hint = f" Did you mean {like[0]}?" if like and like[0] != env else ""
        raise UserError(f"environment {name} cannot be made: {_line(error)}{hint}") from None
    if isinstance(made, gymnasium.vector.VectorEnv):
        number = made.num_envs
        made.close()
        raise UserError(
            f"environment {name} is a vector of {number}, which resets by itself; give what makes "
            f"one environment, and num_envs={number}"
        )
    if not isinstance(made, gymnasium.Env):
        raise UserError(f"environment {name}: expected a gymnasium.Env, got {type(made).__name__}")
    return made


def _make_named(env: str, options: Mapping[str, Any]) -> Any:
    module, colon, name = env.partition(":")
    function = getattr(importlib.import_module(module), name, None) if colon else None
    if function is not None:
        return function()
    with warnings.catch_warnings():
        # Who asks for an older version, such as CartPole-v0, wants that one.
        warnings.filterwarnings("ignore", ".*is out of date", DeprecationWarning)
        return gymnasium.make(env, **options)


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())


def _checked_spaces(
    env: gymnasium.Env[Any, Any], name: str, preprocess: str
) -> tuple[gymnasium.spaces.Box, int]:
    """The space of the observations and the number of actions. Raises `UserError` for others."""
    observations, actions = env.observation_space, env.action_space
    if not isinstance(actions, gymnasium.spaces.Discrete):
        raise UserError(f"environment {name!r} has actions of {actions}; DQN needs Discrete")
    if not isinstance(observations, gymnasium.spaces.Box):
        raise UserError(f"environment {name!r} has observations of {observations}; expected a Box")
    shape, dtype = observations.shape, observations.dtype
    if preprocess in ("grey", "atari"):
        if not is_image(observations):
            raise UserError(
                f"environment {name!r} has observations of {dtype} {shape}: preprocess="
                f"{preprocess!r} is for images of uint8 [H, W], [H, W, 1] or [H, W, 3]; leave it "
                "out"
            )
    elif is_image(observations) and len(shape) == 3:
        raise UserError(
            f"environment {name!r} has images {shape} for observations: give preprocess='grey' "
            "(--preprocess grey) to learn from them in grey, or 'atari' to skip frames and clip "
            "rewards as well"
        )
    elif len(shape) != 1 and not is_image(observations):
        raise UserError(
            f"environment {name!r} has observations of {dtype} {shape}; expected vectors or images "
            "of uint8, height first; gymnasium.wrappers.FlattenObservation makes vectors"
        )
    return observations, int(actions.n)


class _Plain:
    """One environment as it is; see `GymScreens`, whose methods it has."""

    def __init__(
        self, env: gymnasium.Env[Any, Any], rescale: bool, watch: Callable[[], None] | None
    ) -> None:
        actions: Any = env.action_space
        self._env = env
        self._first_action = int(actions.start)
        self._watch = watch
        self._rescaling = _rescaling(env.observation_space) if rescale else None

    def reset(self, seed: int | None, out: npt.NDArray[Any]) -> None:
        self._write(self._env.reset(seed=seed)[0], out)

    def step(self, action: int, out: npt.NDArray[Any]) -> tuple[float, float, bool, bool, int]:
        reached, reward, terminated, truncated, info = self._env.step(
            np.int64(self._first_action + action)
        )
        self._write(final_observation(info, reached) if terminated or truncated else reached, out)
        if self._watch is not None:
            self._watch()
        return float(reward), float(reward), bool(terminated), bool(truncated), 1

    def _write(self, observation: Any, out: npt.NDArray[Any]) -> None:
        if self._rescaling is None:
            out[:] = observation
        else:
            middle, half = self._rescaling
            out[:] = (observation - middle) / half


def _rescaling(space: Any) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
    """The middle of each number's bounds and half their distance, 0 and 1 where there are none;
    none at all where the numbers are whole."""
    if space.dtype.kind != "f":
        return None
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    # Bounds of float32's own are how some environments write that there are none.
    bounded = (np.maximum(np.abs(low), np.abs(high)) < _BOUNDLESS) & (low < high)
    with np.errstate(invalid="ignore"):
        middle, half = (low + high) / 2, (high - low) / 2
    return np.where(bounded, middle, 0.0), np.where(bounded, half, 1.0)


_BOUNDLESS = 1e30


def _name(env: gymnasium.Env[Any, Any]) -> str:
    return env.spec.id if env.spec is not None else type(env.unwrapped).__name__


def _layers(env: gymnasium.Env[Any, Any]) -> list[tuple[Any, tuple[str, ...]]]:
    """The wrappers, outermost first, and the environment, each with the fields of its state."""
    layers: list[tuple[Any, tuple[str, ...]]] = []
    layer: Any = env
    while True:
        fields = _STATE_FIELDS.get(type(layer))
        if fields is None or not all(hasattr(layer, field) for field in fields):
            raise StateNotSaved(f"the state of {type(layer).__name__} cannot be saved")
        layers.append((layer, fields))
        if not isinstance(layer, gymnasium.Wrapper):
            return layers
        layer = layer.env


def _state(env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    fields = [
        {name: _plain(getattr(layer, name)) for name in names} for layer, names in _layers(env)
    ]
    generator = env.unwrapped.np_random.bit_generator
    return {"layers": fields, "generator": dict(generator.state)}


def _plain(value: Any) -> Any:
    return np.array(value) if isinstance(value, (np.ndarray, tuple)) else value


def _restore(env: gymnasium.Env[Any, Any], state: Mapping[str, Any]) -> None:
    env.reset()  # the wrappers that check expect it before a step
    layers = _layers(env)
    if [list(names) for _, names in layers] != [list(fields) for fields in state["layers"]]:
        raise ValueError("the saved environments have other wrappers or another class")
    for (layer, _), fields in zip(layers, state["layers"], strict=True):
        for name, value in fields.items():
            setattr(layer, name, value)
    env.unwrapped.np_random.bit_generator.state = state["generator"]
