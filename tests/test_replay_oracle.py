"""ReplayMemory against the oracle: random scripts, and after every call every answer it can give.

Equal results, to the last bit, and equal exceptions; a refused call leaves no trace in the saved
file either. The scripts mix what a trainer does with what nobody should do: rings of the smallest
size, environments that stand still until their frames are overwritten, episodes of one step,
begins on open episodes, both kinds of end at once.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
)
from numpy.typing import NDArray
from oracle import OracleReplay, Row

from fastdqn.replay import ReplayMemory

MAX_ENVS = 4

# (frame_shape, dtype): images, vectors, a lone number, odd shapes, every kind of dtype.
FRAMES = [
    ((3, 2), "uint8"),
    ((3, 2), "uint8"),
    ((4,), "float32"),
    ((1, 1), "uint8"),
    ((5, 1), "float64"),
    ((1,), "int64"),
    ((7, 3), "int16"),
    ((2, 3, 2), "uint8"),
]

REWARDS = st.sampled_from([0.0, 0.0, 1.0, -1.0, 0.5, -0.25, 7.0, -400.0, 1e-30, 0.1])
ACTIONS = st.sampled_from([0, 1, 5, 17, -1, 2**31 - 1, -(2**31)])
# terminated, truncated, life_lost
OUTCOMES = st.sampled_from(
    [(False, False, False)] * 12
    + [
        (True, False, False),
        (True, False, False),
        (False, True, False),
        (False, True, False),
        (False, False, True),
        (True, True, False),
        (True, False, True),
        (False, True, True),
        (True, True, True),
    ]
)


AGE_FRACTIONS = [0, 0.125, 0.5, 0.875, 1]


def minimum_capacity(num_envs: int, stack: int, n_step: int) -> int:
    """With fewer frames no transition of an episode without end could be drawn."""
    return num_envs * (stack + n_step)


@st.composite
def configurations(draw: st.DrawFn) -> dict[str, Any]:
    frame_shape, dtype = draw(st.sampled_from(FRAMES))
    num_envs = draw(st.integers(1, MAX_ENVS))
    stack = draw(st.integers(1, 5))
    n_step = draw(st.integers(1, 5))
    smallest = minimum_capacity(num_envs, stack, n_step)
    primes = [prime for prime in (11, 13, 17, 23, 31, 47, 61, 97) if prime > smallest]
    return {
        "capacity": draw(st.sampled_from([smallest, smallest + 1, smallest + 2, *primes])),
        "frame_shape": frame_shape,
        "dtype": dtype,
        "num_envs": num_envs,
        "stack": stack,
        "n_step": n_step,
        "discount": draw(st.sampled_from([0.99, 0.5, 1.0, 0.0, 0.9])),
        "padding": draw(st.sampled_from(["zero", "repeat", "reject"])),
        "reward_clip": draw(st.sampled_from(["sign", "clip", "none"])),
        "eviction": draw(st.sampled_from(["fifo", "random"])),
        "seed": draw(st.integers(0, 2**64 - 1)),
    }


def channels_last(shape: Sequence[int], dtype: Any) -> NDArray[Any]:
    """An array of logical shape [B, stack, *frame] whose stack axis varies fastest in memory."""
    batch, stack, *frame = shape
    return np.moveaxis(np.empty((batch, *frame, stack), dtype), -1, 1)


def assert_equal(found: NDArray[Any], expected: NDArray[Any]) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    np.testing.assert_array_equal(found, expected)


def assert_rows(
    columns: dict[str, NDArray[Any]], rows: Sequence[Row], oracle: OracleReplay
) -> None:
    """The columns of a batch hold these rows, in this order, in the dtypes that are promised."""
    shape = (len(rows), oracle.stack, *oracle.frame_shape)
    stacked = np.array([row.state for row in rows], oracle.dtype).reshape(shape)
    assert_equal(columns["states"], stacked)
    stacked = np.array([row.next_state for row in rows], oracle.dtype).reshape(shape)
    assert_equal(columns["next_states"], stacked)
    assert_equal(columns["actions"], np.array([row.action for row in rows], np.int64))
    assert_equal(columns["rewards"], np.array([row.reward for row in rows], np.float32))
    assert_equal(columns["discounts"], np.array([row.discount for row in rows], np.float32))
    assert_equal(columns["indices"], np.array([row.index for row in rows], np.int64))


def columns_of(batch: Any) -> dict[str, NDArray[Any]]:
    names = ("states", "next_states", "actions", "rewards", "discounts", "indices")
    return {name: getattr(batch, name) for name in names}


def outcome_of(call: Callable[[], Any]) -> type[Exception] | None:
    """The type that a call raises, if it raises."""
    try:
        call()
    except Exception as error:
        return type(error)
    return None


class ReplayMachine(RuleBasedStateMachine):
    """Plays the same script on the memory and on the oracle."""

    @initialize(config=configurations())
    def construct(self, config: dict[str, Any]) -> None:
        self.config = config
        self.memory = ReplayMemory(**config)
        self.oracle = OracleReplay(**config)
        self.pixels = np.random.default_rng(config["seed"])
        # In memory where there is such a place: every save waits for the disk.
        in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
        self.folder = tempfile.TemporaryDirectory(dir=in_memory)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()

    def frames(self, count: int) -> NDArray[Any]:
        """Frames that differ from each other and from padding."""
        shape = (count, *self.oracle.frame_shape)
        if self.oracle.dtype.kind == "f":
            return self.pixels.standard_normal(shape).astype(self.oracle.dtype)
        return self.pixels.integers(1, 128, shape).astype(self.oracle.dtype)

    def saved_bytes(self) -> bytes:
        path = Path(self.folder.name) / "saved"
        self.memory.save(path)
        return path.read_bytes()

    def begin_both(self, envs: Sequence[int], *, by_default: bool) -> None:
        frames = self.frames(len(envs))
        env_ids = None if by_default else np.array(envs, np.int64)
        self.memory.begin(frames, env_ids)
        self.oracle.begin(frames, env_ids)
        frames[...] = 0  # the memory must have copied them

    def append_both(
        self,
        envs: Sequence[int],
        actions: Sequence[int],
        rewards: Sequence[float],
        outcomes: Sequence[tuple[bool, bool, bool]],
    ) -> None:
        count = len(envs)
        by_default = list(envs) == list(range(self.oracle.num_envs))
        frames = self.frames(count)
        flags = np.array(outcomes[:count], np.bool_).reshape(count, 3)
        columns = [
            np.array(actions[:count], np.int64),
            np.array(rewards[:count], np.float32),
            frames,
            flags[:, 0].copy(),
            flags[:, 1].copy(),
        ]
        life_lost = flags[:, 2].copy()
        env_ids = None if by_default else np.array(envs, np.int64)
        for replay in (self.memory, self.oracle):
            if life_lost.any():
                replay.append(*columns, env_ids, life_lost=life_lost)
            else:
                replay.append(*columns, env_ids)
        for column in (*columns, life_lost):
            column[...] = 1  # the memory must have copied them

    def open_envs(self) -> list[int]:
        return [
            env
            for env, episodes in enumerate(self.oracle.episodes)
            if episodes and episodes[-1].open
        ]

    # -- what a trainer does -----------------------------------------------------------------

    @rule(
        order=st.permutations(range(MAX_ENVS)),
        count=st.integers(0, MAX_ENVS),
    )
    def begin_some(self, order: list[int], count: int) -> None:
        """Also where an episode is open: it is interrupted."""
        envs = [env for env in order if env < self.oracle.num_envs][:count]
        self.begin_both(envs, by_default=False)

    @rule()
    def begin_all(self) -> None:
        self.begin_both(range(self.oracle.num_envs), by_default=True)

    @precondition(lambda self: self.open_envs())
    @rule(
        order=st.permutations(range(MAX_ENVS)),
        count=st.integers(0, MAX_ENVS),
        actions=st.lists(ACTIONS, min_size=MAX_ENVS, max_size=MAX_ENVS),
        rewards=st.lists(REWARDS, min_size=MAX_ENVS, max_size=MAX_ENVS),
        outcomes=st.lists(OUTCOMES, min_size=MAX_ENVS, max_size=MAX_ENVS),
    )
    def play_some(
        self,
        order: list[int],
        count: int,
        actions: list[int],
        rewards: list[float],
        outcomes: list[tuple[bool, bool, bool]],
    ) -> None:
        """Any of the open episodes, in any order; the rest stand still."""
        playing = self.open_envs()
        envs = [env for env in order if env in playing][:count]
        self.append_both(envs, actions, rewards, outcomes)

    @rule(
        steps=st.integers(1, 8),
        actions=st.lists(ACTIONS, min_size=MAX_ENVS, max_size=MAX_ENVS),
        rewards=st.lists(REWARDS, min_size=MAX_ENVS, max_size=MAX_ENVS),
        outcomes=st.lists(OUTCOMES, min_size=MAX_ENVS, max_size=MAX_ENVS),
    )
    def play_all(
        self,
        steps: int,
        actions: list[int],
        rewards: list[float],
        outcomes: list[tuple[bool, bool, bool]],
    ) -> None:
        """Steps in lockstep, of which the last may end episodes; what has ended begins anew."""
        everyone = range(self.oracle.num_envs)
        ended = [env for env in everyone if env not in self.open_envs()]
        if ended:
            self.begin_both(ended, by_default=False)
        for _ in range(steps - 1):
            self.append_both(everyone, actions, rewards, [(False, False, False)] * MAX_ENVS)
            self.agrees()
        self.append_both(everyone, actions, rewards, outcomes)

    @precondition(lambda self: self.open_envs())
    @rule(
        who=st.integers(0, MAX_ENVS - 1),
        steps=st.sampled_from([1, 2, 3, 5, 8, 20, 40]),
        actions=st.lists(ACTIONS, min_size=1, max_size=1),
        rewards=st.lists(REWARDS, min_size=1, max_size=1),
    )
    def play_one_for_long(
        self, who: int, steps: int, actions: list[int], rewards: list[float]
    ) -> None:
        """The others stand still, at last until their frames are overwritten."""
        playing = self.open_envs()
        env = playing[who % len(playing)]
        for _ in range(steps):
            self.append_both([env], actions, rewards, [(False, False, False)])
            self.agrees()

    @rule(batch_size=st.integers(1, 9))
    def draw(self, batch_size: int) -> None:
        """Every way to sample shows rows as the oracle has them, or says that there are none."""
        rows = {row.index: row for row in self.oracle.rows()}
        if not rows:
            begin_of_message = f"0 of {self.oracle.num_frames} stored frames can be drawn"
            with pytest.raises(ValueError, match=begin_of_message):
                self.memory.sample(batch_size)
            return
        for last in (False, True):
            columns = columns_of(self.memory.sample(batch_size, channels_last=last))
            assert len(columns["indices"]) == batch_size
            drawn = [rows[int(index)] for index in columns["indices"]]
            assert_rows(columns, drawn, self.oracle)

        shape = (batch_size, self.oracle.stack, *self.oracle.frame_shape)
        dtype = self.oracle.dtype
        layouts = [(np.empty(shape, dtype), np.empty(shape, dtype))]
        if len(self.oracle.frame_shape) == 2:
            layouts.append((channels_last(shape, dtype), channels_last(shape, dtype)))
        if self.oracle.n_step == 1:
            window = np.empty((batch_size, shape[1] + 1, *shape[2:]), dtype)
            layouts.append((window[:, :-1], window[:, 1:]))
        for states, next_states in layouts:
            columns = {
                "states": states,
                "next_states": next_states,
                "actions": np.empty(batch_size, np.int64),
                "rewards": np.empty(batch_size, np.float32),
                "discounts": np.empty(batch_size, np.float32),
                "indices": np.empty(batch_size, np.int64),
            }
            self.memory.sample_into(*columns.values())
            drawn = [rows[int(index)] for index in columns["indices"]]
            assert_rows(columns, drawn, self.oracle)

    @rule(batch_size=st.integers(1, 5))
    def save_and_load(self, batch_size: int) -> None:
        """The loaded memory goes on as the saved one would have, draws included."""
        path = Path(self.folder.name) / "memory"
        self.memory.save(path)
        saved, loaded = self.memory, ReplayMemory.load(path)
        os.remove(path)
        if len(saved):
            for _ in range(3):
                left, right = saved.sample(batch_size), loaded.sample(batch_size)
                for one, other in zip(
                    columns_of(left).values(), columns_of(right).values(), strict=True
                ):
                    assert_equal(one, other)
        for name, value in self.config.items():
            assert getattr(loaded, name) == value
        self.memory = loaded

    # -- what nobody should do ---------------------------------------------------------------

    def assert_refused_alike(self, call: Callable[[Any], Any]) -> None:
        before = self.saved_bytes()
        expected = outcome_of(lambda: call(self.oracle))
        assert expected is not None, "the script meant to be refused"
        assert outcome_of(lambda: call(self.memory)) is expected
        assert self.saved_bytes() == before, "a refused call left a trace"

    def call_with(self, name: str, envs: Sequence[int], **changed: Any) -> Callable[[Any], Any]:
        count = len(envs)
        arguments: dict[str, Any] = {
            "actions": np.zeros(count, np.int64),
            "rewards": np.zeros(count, np.float32),
            "frames": self.frames(count),
            "terminated": np.zeros(count, np.bool_),
            "truncated": np.zeros(count, np.bool_),
            "env_ids": list(envs),
        }
        if name == "begin":
            arguments = {key: arguments[key] for key in ("frames", "env_ids")}
        arguments.update(changed)
        return lambda replay: getattr(replay, name)(**arguments)

    @rule(
        name=st.sampled_from(["begin", "append"]),
        fault=st.sampled_from(["above", "negative", "twice", "shape", "rank", "count", "dtype"]),
    )
    def refuse_environments_and_frames(self, name: str, fault: str) -> None:
        envs = self.open_envs() if name == "append" else list(range(self.oracle.num_envs))
        if not envs:
            return
        frames = self.frames(len(envs))
        if fault == "above":
            call = self.call_with(name, [*envs[:-1], self.oracle.num_envs])
        elif fault == "negative":
            call = self.call_with(name, [-1, *envs[1:]])
        elif fault == "twice":
            call = self.call_with(name, [*envs, envs[0]])
        elif fault == "shape":
            wider = np.concatenate([frames, frames], axis=-1)
            call = self.call_with(name, envs, frames=wider)
        elif fault == "rank":
            call = self.call_with(name, envs, frames=frames[..., None])
        elif fault == "count":
            call = self.call_with(name, envs, frames=np.concatenate([frames, frames]))
        else:
            other = "float32" if self.oracle.dtype != "float32" else "uint8"
            call = self.call_with(name, envs, frames=frames.astype(other))
        self.assert_refused_alike(call)

    @precondition(lambda self: self.open_envs())
    @rule(
        fault=st.sampled_from(
            ["action too large", "action too small", "float actions", "bool actions"]
            + ["integer rewards", "reward nan", "reward inf", "reward 1e39"]
            + [
                f"{kind} {name}"
                for kind in ("long", "integer")
                for name in ("terminated", "truncated", "life_lost")
            ]
            + ["long actions", "long rewards", "column rewards"]
        )
    )
    def refuse_columns(self, fault: str) -> None:
        envs = self.open_envs()
        count = len(envs)
        changed: dict[str, Any]
        kind, _, name = fault.partition(" ")
        if kind == "action":
            actions = np.zeros(count, np.int64)
            actions[-1] = 2**31 if name == "too large" else -(2**31) - 1
            changed = {"actions": actions}
        elif kind in ("float", "bool"):
            changed = {"actions": np.zeros(count, kind)}
        elif kind == "reward":
            rewards = np.zeros(count)
            rewards[-1] = float(name)
            changed = {"rewards": rewards}
        elif name == "rewards" and kind == "integer":
            changed = {"rewards": np.zeros(count, np.int64)}
        elif kind == "column":
            changed = {"rewards": np.zeros((count, 1), np.float32)}
        elif kind == "integer":
            changed = {name: np.zeros(count, np.int64)}
        else:
            dtype = {"actions": np.int64, "rewards": np.float32}.get(name, np.bool_)
            changed = {name: np.zeros(count + 1, dtype)}
        self.assert_refused_alike(self.call_with("append", envs, **changed))

    @rule()
    def refuse_what_has_ended(self) -> None:
        """No row of a call is stored where one of its rows cannot be."""
        everyone = list(range(self.oracle.num_envs))
        if len(self.open_envs()) < len(everyone):
            playing = self.open_envs()
            order = playing + [env for env in everyone if env not in playing]
            self.assert_refused_alike(self.call_with("append", order))

    @rule(index=st.integers(-2, 64))
    def refuse_indices(self, index: int) -> None:
        if index in self.oracle.drawable():
            return
        good = list(self.oracle.drawable())[:2]
        before = self.saved_bytes()
        expected = outcome_of(lambda: self.oracle.row(index))
        indices = np.array([*good, index], np.int64)
        assert outcome_of(lambda: self.memory.gather(indices)) is expected
        assert self.saved_bytes() == before

    # -- what must hold after every call -----------------------------------------------------

    @invariant()
    def agrees(self) -> None:
        memory, oracle = self.memory, self.oracle
        memory.check_invariants()
        rows = oracle.rows()
        indices = np.array([row.index for row in rows], np.int64)
        assert memory.num_frames == oracle.num_frames
        assert len(memory) == len(rows)
        assert_equal(memory.valid_indices(), indices)
        if oracle.num_frames:
            ages = [oracle.age_quantile(fraction) for fraction in AGE_FRACTIONS]
            assert_equal(memory.age_quantiles(AGE_FRACTIONS), np.array(ages, np.int64))
        if rows:
            assert_rows(columns_of(memory.gather(indices)), rows, oracle)
            if len(oracle.frame_shape) == 2:
                batch = memory.gather(indices, channels_last=True)
                assert_rows(columns_of(batch), rows, oracle)
                for states in (batch.states, batch.next_states):
                    assert np.moveaxis(states, 1, -1).flags.c_contiguous
        for env in range(oracle.num_envs):
            self.acting_agrees(env)

    def acting_agrees(self, env: int) -> None:
        memory, oracle = self.memory, self.oracle
        assert outcome_of(lambda: memory.needs_padding([env])) is outcome_of(
            lambda: oracle.needs_padding(env)
        )
        expected_error = outcome_of(lambda: oracle.acting_stack(env))
        assert outcome_of(lambda: memory.stacks([env])) is expected_error
        shape = (1, oracle.stack, *oracle.frame_shape)
        out = np.full(shape, 77, oracle.dtype)
        assert outcome_of(lambda: memory.stacks_into(out, [env])) is expected_error
        if expected_error is not None:
            assert (out == 77).all()
            return
        assert_equal(memory.needs_padding([env]), np.array([oracle.needs_padding(env)]))
        expected = oracle.acting_stack(env)[None]
        assert_equal(memory.stacks([env]), expected)
        assert_equal(out, expected)
        if len(oracle.frame_shape) == 2:
            stacks = memory.stacks([env], channels_last=True)
            assert_equal(stacks, expected)
            assert np.moveaxis(stacks, 1, -1).flags.c_contiguous
            out = channels_last(shape, oracle.dtype)
            memory.stacks_into(out, [env])
            assert_equal(out, expected)


ReplayMachine.TestCase.settings = settings(stateful_step_count=40)
TestReplayMachine = ReplayMachine.TestCase
