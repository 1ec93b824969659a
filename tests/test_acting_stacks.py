"""What the policy saw when it acted is, byte for byte, what it is trained on."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal
from oracle import OracleReplay

from fastdqn.envs.atari import AtariOptions
from fastdqn.envs.vector import AtariVector
from fastdqn.replay import ReplayMemory


@pytest.mark.parametrize("padding", ["zero", "repeat", "reject"])
@pytest.mark.parametrize("stack", [1, 2, 4])
@pytest.mark.parametrize("n_step", [1, 3])
@pytest.mark.parametrize(
    ("frame_shape", "dtype"), [((6, 5), "uint8"), ((3,), "float32"), ((84, 84), "uint8")]
)
def test_the_stack_that_was_acted_on_is_the_stack_that_is_drawn(
    padding: str, stack: int, n_step: int, frame_shape: tuple[int, ...], dtype: str
) -> None:
    """Over many episodes, short ones too, and several rounds of the ring."""
    num_envs, steps = 3, 60 if frame_shape == (84, 84) else 300
    capacity = num_envs * (stack + n_step) + 37
    memory = ReplayMemory(
        capacity,
        frame_shape,
        dtype,
        num_envs=num_envs,
        stack=stack,
        n_step=n_step,
        padding=padding,
    )
    random = np.random.default_rng(0)
    image = len(frame_shape) == 2

    def frames(count: int) -> np.ndarray[Any, Any]:
        raw = random.integers(1, 255, (count, *frame_shape))
        return raw.astype(dtype) if dtype == "uint8" else (raw / 7).astype(dtype)

    # The action names the decision, so that a drawn row says which acting stack was its own.
    acted_on: list[np.ndarray[Any, Any]] = []
    padded: set[int] = set()
    compared: set[int] = set()
    memory.begin(frames(num_envs))
    for _ in range(steps):
        seen = memory.stacks()
        shape = (num_envs, stack, *frame_shape)
        out = np.zeros(shape, dtype)
        memory.stacks_into(out)
        assert out.tobytes() == seen.tobytes()
        if image:
            last = memory.stacks(channels_last=True)
            assert last.shape == shape
            assert np.ascontiguousarray(last).tobytes() == seen.tobytes()
            turned = np.moveaxis(np.zeros((num_envs, *frame_shape, stack), dtype), -1, 1)
            memory.stacks_into(turned)
            assert np.ascontiguousarray(turned).tobytes() == seen.tobytes()
        for env in reversed(range(num_envs)):
            assert memory.stacks([env])[0].tobytes() == seen[env].tobytes()

        actions = np.arange(len(acted_on), len(acted_on) + num_envs)
        padded.update(actions[memory.needs_padding()].tolist())
        acted_on.extend(seen)
        terminated = random.random(num_envs) < 0.1
        truncated = random.random(num_envs) < 0.1
        memory.append(
            actions,
            np.zeros(num_envs, np.float32),
            frames(num_envs),
            terminated,
            truncated,
            life_lost=random.random(num_envs) < 0.1,
        )
        ended = np.flatnonzero(terminated | truncated)
        if ended.size:
            memory.begin(frames(len(ended)), ended)

        if len(memory) == 0:
            continue
        batch = memory.gather(memory.valid_indices(), channels_last=image)
        for action, state in zip(batch.actions.tolist(), batch.states, strict=True):
            assert np.ascontiguousarray(state).tobytes() == acted_on[action].tobytes()
            compared.add(action)
    if padding == "reject":
        assert not compared & padded
    assert len(compared - padded) > steps
    assert stack == 1 or padded


def test_a_truncated_episode_bootstraps_from_the_stack_that_would_have_been_acted_on() -> None:
    """The next state of any transition is the acting stack of the frame it led to."""
    memory = ReplayMemory(40, (2, 2), stack=3)
    random = np.random.default_rng(1)
    memory.begin(random.integers(1, 255, (1, 2, 2), dtype=np.uint8))
    reached: dict[int, bytes] = {}
    no = np.zeros(1, np.bool_)
    for step in range(30):
        frame = random.integers(1, 255, (1, 2, 2), dtype=np.uint8)
        memory.append(np.array([step]), np.zeros(1), frame, no, np.array([step == 29]))
        if step < 29:
            reached[step] = memory.stacks().tobytes()
        else:
            reached[step] = np.concatenate(
                [memory.gather(memory.valid_indices()).states[-1][1:], frame]
            ).tobytes()
    batch = memory.gather(memory.valid_indices())
    assert len(batch.actions) == 30
    for action, state in zip(batch.actions.tolist(), batch.next_states, strict=True):
        assert state.tobytes() == reached[action]


@pytest.mark.parametrize(("eviction", "capacity"), [("fifo", 151), ("random", 461)])
def test_the_trainers_loop_on_a_real_game(eviction: str, capacity: int) -> None:
    """Environment and memory together, as a trainer plays: what was shown is what is drawn.

    With lost lives, ends and frame limits in three environments and several rounds of the ring;
    compared with the oracle, which is given copies, since a vector reuses its arrays.
    """
    options = AtariOptions(max_episode_frames=800, frame_shape=(21, 20), fire_reset=True)
    envs = AtariVector("breakout", 3, options, seed=4)
    config: dict[str, Any] = {
        "capacity": capacity,
        "frame_shape": envs.frame_shape,
        "dtype": envs.dtype.name,
        "num_envs": 3,
        "stack": 4,
        "n_step": 3,
        "discount": 0.99,
        "padding": "zero",
        "reward_clip": "none",
        "eviction": eviction,
        "seed": 3,
    }
    memory, oracle = ReplayMemory(**config), OracleReplay(**config)
    random = np.random.default_rng(0)
    first = envs.reset()
    memory.begin(first)
    oracle.begin(first.copy())
    ends = np.zeros(3, np.int64)
    fires = np.zeros(3, np.bool_)  # where the next step plays FIRE, action 1, after a lost life
    for step in range(500):
        shown = memory.stacks()
        for env in range(3):
            assert_array_equal(shown[env], oracle.acting_stack(env))
        actions = random.integers(0, envs.num_actions, 3)
        result = envs.step(actions)
        assert_array_equal(result.actions, np.where(fires, 1, actions))
        fires = result.life_lost & ~result.terminated & ~result.truncated
        columns = (
            result.actions,
            result.learning_rewards,
            result.frames,
            result.terminated,
            result.truncated,
        )
        memory.append(*columns, life_lost=result.life_lost)
        oracle.append(*(column.copy() for column in columns), life_lost=result.life_lost.copy())
        ends += [result.life_lost.any(), result.terminated.any(), result.truncated.any()]
        ended = np.flatnonzero(result.terminated | result.truncated)
        if ended.size:
            first = envs.reset(ended)
            memory.begin(first, ended)
            oracle.begin(first.copy(), ended.tolist())
        if step % 20 == 19:
            rows = oracle.rows()
            assert memory.valid_indices().tolist() == [row.index for row in rows]
            batch = memory.gather(memory.valid_indices())
            for at, row in enumerate(rows):
                assert_array_equal(batch.states[at], row.state)
                assert_array_equal(batch.next_states[at], row.next_state)
                assert batch.actions[at] == row.action
                assert batch.rewards[at] == row.reward
                assert batch.discounts[at] == row.discount
    assert (ends > 0).all(), "lives were lost, games ended, games were cut"
