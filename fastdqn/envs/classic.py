"""Any gymnasium environment with discrete actions behind the trainer's interface.

Meant for classic control: the environments run one after another in this process. Observations
must be a Box: images keep their uint8, everything else becomes float32. Other spaces are refused.
Only the states of environments whose every field is known here are saved.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
from gymnasium.envs.classic_control import AcrobotEnv, CartPoleEnv, MountainCarEnv
from gymnasium.wrappers import OrderEnforcing, PassiveEnvChecker, TimeLimit

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


class GymVector(SerialVector):
    """N gymnasium environments, made by an id, by a function that makes one, or by the name under
    which such a function can be imported: "my_module:make_env".

    Each environment is seeded once, at its first reset, from its own child of `seed`. Rewards are
    raw and learned from as they are; `frames_used` counts one frame a step. `share`: see
    `AtariVector`.

    Raises UserError where the name is unknown or a space is not supported.
    """

    def __init__(
        self,
        env: str | Callable[[], gymnasium.Env[Any, Any]],
        num_envs: int,
        *,
        seed: int = 0,
        share: range | None = None,
    ) -> None:
        seeds = spawn_seeds(seed, num_envs, share)
        self._envs = [make_gym(env) for _ in seeds]
        self._seeds: list[int | None] = [int(child.generate_state(1)[0]) for child in seeds]
        observations, actions = self._envs[0].observation_space, self._envs[0].action_space
        self._name = env if isinstance(env, str) else _name(self._envs[0])
        if not isinstance(observations, gymnasium.spaces.Box):
            raise UserError(
                f"environment {self._name!r} has observations of {observations}; expected a Box"
            )
        if not isinstance(actions, gymnasium.spaces.Discrete):
            raise UserError(
                f"environment {self._name!r} has actions of {actions}; DQN needs Discrete"
            )
        self.num_envs = len(self._envs)
        self.frame_shape = observations.shape
        self.dtype = np.dtype(np.uint8 if observations.dtype == np.uint8 else np.float32)
        self.num_actions = int(actions.n)
        self._first_action = int(actions.start)
        self._result = StepResult.zeros(self.num_envs, self.frame_shape, self.dtype)
        self._result.frames_used[:] = 1

    def protocol(self) -> dict[str, object]:
        """See `VectorEnv.protocol`."""
        spec = self._envs[0].spec
        return {
            "num_envs": self.num_envs,
            "workers": 0,
            "game": self._name,
            "num_actions": self.num_actions,
            "max_episode_steps": None if spec is None else spec.max_episode_steps,
            "frame_shape": list(self.frame_shape),
            "dtype": self.dtype.name,
        }

    def reset(self, env_ids: npt.NDArray[np.int64] | None = None) -> npt.NDArray[Any]:
        """See `VectorEnv.reset`."""
        ids = checked_ids(env_ids, self.num_envs)
        frames = np.empty((len(ids), *self.frame_shape), self.dtype)
        for i, env_id in enumerate(ids):
            frames[i] = self._envs[env_id].reset(seed=self._seeds[env_id])[0]
            self._seeds[env_id] = None
        return frames

    def step(self, actions: npt.NDArray[np.int64]) -> StepResult:
        """See `VectorEnv.step`."""
        result = self._result
        if len(actions) != self.num_envs:
            raise ValueError(f"expected {self.num_envs} actions, got {len(actions)}")
        result.actions[:] = actions
        for i, env in enumerate(self._envs):
            frame, reward, terminated, truncated, _ = env.step(
                np.int64(self._first_action + actions[i])
            )
            result.frames[i] = frame
            result.rewards[i] = result.learning_rewards[i] = reward
            result.terminated[i] = terminated
            result.truncated[i] = truncated
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

    Raises UserError where there is none of that name.
    """
    if not isinstance(env, str):
        return env()
    try:
        module, colon, name = env.partition(":")
        function = getattr(importlib.import_module(module), name, None) if colon else None
        return gymnasium.make(env, **options) if function is None else function()
    except (gymnasium.error.Error, ImportError) as error:
        message = " ".join(str(error).split())
        raise UserError(f"environment {env!r} cannot be made: {message}") from None


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
