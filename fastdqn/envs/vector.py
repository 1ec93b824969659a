"""The trainer's interface to its environments, and Atari behind it.

Nothing is reset by itself: a step returns the frames reached, final ones included, and the caller
resets what has ended. The arrays of a result are reused by the next call: copy what must last.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any, Protocol

import ale_py
import numpy as np
import numpy.typing as npt

from fastdqn.envs.atari import AtariGame, AtariOptions
from fastdqn.envs.relay import AtariRelay
from fastdqn.errors import UserError

__all__ = [
    "AtariVector",
    "SerialVector",
    "StateNotSaved",
    "StepResult",
    "VectorEnv",
    "checked_ids",
    "spawn_seeds",
    "states_of_all",
]


class StateNotSaved(Exception):
    """An environment whose state cannot be saved, with the reason: it must start anew."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What one step led to in every environment; N is `num_envs`."""

    actions: npt.NDArray[np.int64]  # [N] played: FIRE in place of the given one after a lost life
    frames: npt.NDArray[Any]  # [N, *frame_shape], the frames reached
    rewards: npt.NDArray[np.float64]  # [N] raw
    learning_rewards: npt.NDArray[np.float32]  # [N] clipped, penalties included
    terminated: npt.NDArray[np.bool_]  # [N] the episode ended in a terminal state
    truncated: npt.NDArray[np.bool_]  # [N] the episode was cut at a limit
    life_lost: npt.NDArray[np.bool_]  # [N] terminal for learning, the episode goes on
    frames_used: npt.NDArray[np.int64]  # [N] emulator frames of the step

    @staticmethod
    def columns(frame_shape: Sequence[int], dtype: npt.DTypeLike) -> dict[str, np.dtype[Any]]:
        """What each array holds for one environment, by name: its type, with a frame's shape."""
        return {
            "actions": np.dtype(np.int64),
            "frames": np.dtype((dtype, tuple(frame_shape))),
            "rewards": np.dtype(np.float64),
            "learning_rewards": np.dtype(np.float32),
            "terminated": np.dtype(np.bool_),
            "truncated": np.dtype(np.bool_),
            "life_lost": np.dtype(np.bool_),
            "frames_used": np.dtype(np.int64),
        }

    @classmethod
    def zeros(cls, num_envs: int, frame_shape: Sequence[int], dtype: npt.DTypeLike) -> StepResult:
        """The arrays for `num_envs` environments, all zero."""
        columns = cls.columns(frame_shape, dtype)
        return cls(**{name: np.zeros(num_envs, kind) for name, kind in columns.items()})

    def rows(self, share: slice) -> StepResult:
        """Views of the rows of some environments."""
        return StepResult(**{name: array[share] for name, array in self.arrays().items()})

    def arrays(self) -> dict[str, npt.NDArray[Any]]:
        """The arrays by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


class VectorEnv(Protocol):
    """N environments that step together."""

    @property
    def num_envs(self) -> int: ...
    @property
    def frame_shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def num_actions(self) -> int: ...

    def protocol(self) -> dict[str, object]:
        """What is played and how, in values that JSON can hold: printed and saved with a run."""
        ...

    def reset(self, env_ids: npt.NDArray[np.int64] | None = None) -> npt.NDArray[Any]:
        """Starts a new episode in each named environment (None: in all).

        Returns their first frames [len(env_ids), *frame_shape], in the order of `env_ids`.
        """
        ...

    def send(self, actions: npt.NDArray[np.int64]) -> None:
        """Begins one step: `actions` [N], one for each environment; those that have ended must be
        reset first. `receive` must follow before anything else."""
        ...

    def receive(self) -> StepResult:
        """Ends the step that `send` began."""
        ...

    def step(self, actions: npt.NDArray[np.int64]) -> StepResult:
        """`send` and `receive` in one."""
        ...

    def save_state(self) -> dict[str, Any]:
        """All that `load_state` needs to go on exactly, in another process too: `{"envs": [...]}`,
        an entry for each environment, of what JSON holds, bytes and arrays.

        Not between `send` and `receive`, nor before what has ended is reset. Raises
        `StateNotSaved` where an environment cannot.
        """
        ...

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from a state saved by environments made with the same settings and number.

        Raises `ValueError` for any other.
        """
        ...

    def close(self) -> None:
        """Ends the environments; no other call may follow."""
        ...


class SerialVector:
    """Environments in this process, which step one after another in `receive`."""

    num_envs: int
    frame_shape: tuple[int, ...]
    dtype: np.dtype[Any]
    num_actions: int
    _result: StepResult
    _sent: npt.NDArray[np.int64] | None = None

    def write_to(self, result: StepResult) -> None:
        """From now on steps write to the arrays of `result`, which take over what stands in the
        ones before."""
        for name, array in self._result.arrays().items():
            getattr(result, name)[:] = array
        self._result = result

    def send(self, actions: npt.NDArray[np.int64]) -> None:
        """See `VectorEnv.send`."""
        self._sent = actions

    def receive(self) -> StepResult:
        """See `VectorEnv.receive`."""
        actions, self._sent = self._sent, None
        if actions is None:
            raise RuntimeError("no step was begun: send actions before receiving their results")
        return self.step(actions)

    def protocol(self) -> dict[str, object]:
        """See `VectorEnv.protocol`."""
        raise NotImplementedError

    def reset(self, env_ids: npt.NDArray[np.int64] | None = None) -> npt.NDArray[Any]:
        """See `VectorEnv.reset`."""
        raise NotImplementedError

    def must_start(self, env_ids: npt.NDArray[np.int64]) -> bool:
        """Whether `prepare` would shorten a reset of these."""
        return False

    def prepare(self) -> bool:
        """Does a part of what resets to come would have to do, for whoever has time to spare;
        False where nothing is left. It changes no result."""
        return False

    def step(self, actions: npt.NDArray[np.int64]) -> StepResult:
        """See `VectorEnv.step`."""
        raise NotImplementedError

    def save_state(self) -> dict[str, Any]:
        """See `VectorEnv.save_state`."""
        raise NotImplementedError

    def load_state(self, state: Mapping[str, Any]) -> None:
        """See `VectorEnv.load_state`."""
        raise NotImplementedError

    def close(self) -> None:
        """See `VectorEnv.close`."""
        raise NotImplementedError


def spawn_seeds(seed: int, num_envs: int, share: range | None) -> list[np.random.SeedSequence]:
    """A seed for each environment of `share` (None: of all `num_envs`), its own child of `seed`:
    which one does not depend on the share. Raises `UserError` where there are no environments."""
    if num_envs < 1:
        raise UserError(f"num_envs must be at least 1, got {num_envs}")
    seeds = np.random.SeedSequence(seed).spawn(num_envs)
    return seeds if share is None else [seeds[i] for i in share]


def checked_ids(env_ids: npt.NDArray[np.int64] | None, num_envs: int) -> npt.NDArray[np.int64]:
    """The environments that a reset names, each once: all for None. A mask is refused."""
    if env_ids is None:
        return np.arange(num_envs)
    if env_ids.dtype.kind not in "iu":
        raise TypeError(f"env_ids must be integers, got {env_ids.dtype}")
    if env_ids.size and not 0 <= env_ids.min() <= env_ids.max() < num_envs:
        raise IndexError(f"env_ids must be in [0, {num_envs}), got {env_ids.tolist()}")
    if len(set(env_ids.tolist())) < env_ids.size:
        raise ValueError(f"env_ids must differ, got {env_ids.tolist()}")
    return env_ids


def states_of_all(state: Mapping[str, Any], num_envs: int) -> Sequence[Mapping[str, Any]]:
    """The entries of a state that `VectorEnv.save_state` returned: one for each environment."""
    states: Sequence[Mapping[str, Any]] = state["envs"]
    if len(states) != num_envs:
        raise ValueError(f"expected the states of {num_envs} environments, got {len(states)}")
    return states


class AtariVector(SerialVector):
    """N games in this process, each with its own seed, writing into one array.

    `share` names some of `num_envs` environments: only they are made, and each is what it would be
    among all of them. `watch` is shown each emulator after every frame of it.
    """

    def __init__(
        self,
        game: str,
        num_envs: int,
        options: AtariOptions | None = None,
        *,
        seed: int = 0,
        share: range | None = None,
        watch: Callable[[ale_py.ALEInterface], None] | None = None,
    ) -> None:
        options = options or AtariOptions()
        seeds = spawn_seeds(seed, num_envs, share)
        self.num_envs = len(seeds)
        self.frame_shape = options.frame_shape
        self.dtype = np.dtype(np.uint8)
        make = partial(AtariGame, game, options, watch=watch)
        self._games = [AtariRelay(make, seed) for seed in seeds]
        self.num_actions = len(self._games[0].playing.action_meanings)
        self._result = StepResult.zeros(self.num_envs, options.frame_shape, np.uint8)
        self._rows = list(self._result.frames)

    def write_to(self, result: StepResult) -> None:
        """See `SerialVector.write_to`."""
        super().write_to(result)
        self._rows = list(result.frames)

    def protocol(self) -> dict[str, object]:
        """See `VectorEnv.protocol`."""
        return {"num_envs": self.num_envs, "workers": 0, **self._games[0].playing.protocol()}

    def reset(self, env_ids: npt.NDArray[np.int64] | None = None) -> npt.NDArray[np.uint8]:
        """See `VectorEnv.reset`."""
        ids = checked_ids(env_ids, self.num_envs)
        frames = np.empty((len(ids), *self.frame_shape), np.uint8)
        for frame, env_id in zip(frames, ids, strict=True):
            self._games[env_id].reset(frame)
        return frames

    def must_start(self, env_ids: npt.NDArray[np.int64]) -> bool:
        """See `SerialVector.must_start`."""
        return any(not self._games[env_id].is_ready for env_id in env_ids)

    def prepare(self) -> bool:
        """See `SerialVector.prepare`."""
        return any(game.prepare() for game in self._games)

    def step(self, actions: npt.NDArray[np.int64]) -> StepResult:
        """See `VectorEnv.step`."""
        result = self._result
        if len(actions) != self.num_envs:
            raise ValueError(f"expected {self.num_envs} actions, got {len(actions)}")
        played = actions.tolist()
        for game, action in zip(self._games, played, strict=True):
            game.playing.stepper.check(action)  # a step is refused as a whole
        for i, action in enumerate(played):
            stepper = self._games[i].playing.stepper
            stepper.step(action, self._rows[i])
            result.actions[i] = stepper.action_played
            result.rewards[i] = stepper.reward
            result.learning_rewards[i] = stepper.learning_reward
            result.terminated[i] = stepper.terminated
            result.truncated[i] = stepper.truncated
            result.life_lost[i] = stepper.life_lost
            result.frames_used[i] = stepper.frames_used
        return result

    def save_state(self) -> dict[str, Any]:
        """See `VectorEnv.save_state`."""
        return {"envs": [game.save_state() for game in self._games]}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """See `VectorEnv.load_state`."""
        for game, saved in zip(self._games, states_of_all(state, self.num_envs), strict=True):
            game.load_state(saved)

    def close(self) -> None:
        """See `VectorEnv.close`."""
        self._games.clear()
