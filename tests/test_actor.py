"""Epsilon-greedy over all environments at once."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastdqn.actor import Actor, GreedyPolicy
from fastdqn.lanes import make_lane
from fastdqn.networks import empty_stacks


class FakeMemory:
    """Environment i shows the number i; those in `padded` are at a game's beginning."""

    def __init__(self, padded: list[bool]) -> None:
        self.padded = np.array(padded)
        self.shown = 0

    def stacks_into(self, out: NDArray[Any]) -> None:
        self.shown += 1
        out[:] = np.arange(len(out)).reshape(-1, 1, 1)

    def needs_padding(self) -> NDArray[np.bool_]:
        return self.padded


class Pick(nn.Module):
    """Prefers the action with the number that it is shown."""

    def forward(self, stacks: Tensor) -> Tensor:
        return -(stacks[:, 0] - torch.arange(7.0)).abs()


def make_actor(memory: FakeMemory, epsilon: Any, reject_padding: bool = False) -> Actor:
    stacks = empty_stacks(len(memory.padded), 1, (1,), np.float32)
    return Actor(
        GreedyPolicy(Pick(), stacks, make_lane(torch.device("cpu")), lambda choose: choose),
        memory,
        stacks,
        num_actions=7,
        epsilon=epsilon,
        reject_padding=reject_padding,
        generator=np.random.default_rng(0),
    )


def test_greedy_actions_follow_each_environments_own_stack() -> None:
    memory = FakeMemory([False] * 5)
    actions = make_actor(memory, lambda _: 0.0).act(0)
    assert actions.tolist() == [0, 1, 2, 3, 4]
    assert actions.dtype == np.int64


def test_environment_i_of_a_vector_step_uses_the_epsilon_of_step_plus_i() -> None:
    asked: list[int] = []

    def epsilon(step: int) -> float:
        asked.append(step)
        return float(step < 102)

    memory = FakeMemory([False] * 5)
    actor = make_actor(memory, epsilon)
    drawn = np.array([actor.act(100) for _ in range(300)])
    assert asked[:5] == [100, 101, 102, 103, 104]
    assert (drawn[:, 2:] == [2, 3, 4]).all()
    for env in (0, 1):
        counts = np.bincount(drawn[:, env], minlength=7)
        assert counts.min() > 20  # 300 / 7 is about 43, with a deviation of 6


def test_no_network_is_needed_while_all_explore() -> None:
    memory = FakeMemory([False] * 3)
    actor = make_actor(memory, lambda _: 1.0)
    for step in range(20):
        actor.act(step)
    assert memory.shown == 0


def test_acts_at_random_where_a_stack_would_need_padding() -> None:
    memory = FakeMemory([True, False, True, False])
    drawn = np.array([make_actor(memory, lambda _: 0.0, True).act(0) for _ in range(1)])
    assert drawn[0, [1, 3]].tolist() == [1, 3]
    actor = make_actor(memory, lambda _: 0.0, reject_padding=True)
    assert len({int(actor.act(0)[0]) for _ in range(100)}) == 7
    padded_anyway = make_actor(memory, lambda _: 0.0, reject_padding=False)
    assert padded_anyway.act(0).tolist() == [0, 1, 2, 3]


def test_random_actions_do_not_depend_on_what_is_greedy() -> None:
    """The generator is used alike whether or not the network is asked, so runs stay comparable."""
    lazy, busy = FakeMemory([False]), FakeMemory([False])
    always = make_actor(lazy, lambda _: 1.0)
    sometimes = make_actor(busy, lambda step: float(step % 2))
    both = [(always.act(step), sometimes.act(step)) for step in range(100)]
    assert all(a.tolist() == b.tolist() for a, b in both[1::2])
