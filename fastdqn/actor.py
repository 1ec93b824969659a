"""The actor: epsilon-greedy actions for all environments at once.

It knows nothing of learning. What it shows to the network comes from the same stacking as the
batches that the network is trained on. On a GPU the network's pass is a CUDA graph, and the host
waits for nothing but the actions, which land in page-locked memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastdqn.lanes import Lane, copy_all

__all__ = ["Actor", "GreedyPolicy", "Policy", "Stacks"]

Policy = Callable[[], NDArray[np.int64]]
"""The best actions [N] for the host stacks that it was made for, as they are when it is called; in
memory that the next call overwrites."""


class Stacks(Protocol):
    """What the actor needs of a replay memory."""

    def stacks_into(self, out: NDArray[Any]) -> None:
        """Write each environment's current stack to `out` [N, stack, *frame_shape]."""

    def needs_padding(self) -> NDArray[np.bool_]:
        """[N]: whose current stack would need padding."""


class Actor:
    """Chooses an action for each environment.

    `policy` is that of the stacks [N, stack, *frame_shape], a host tensor that the actor fills anew
    each time. With `reject_padding` it acts at random where a stack would need padding.
    """

    def __init__(
        self,
        policy: Policy,
        memory: Stacks,
        stacks: Tensor,
        *,
        num_actions: int,
        epsilon: Callable[[int], float],
        reject_padding: bool,
        generator: np.random.Generator,
    ) -> None:
        self._memory = memory
        self._stacks_array = stacks.numpy()
        self._policy = policy
        self._num_actions = num_actions
        self._epsilon = epsilon
        self._reject_padding = reject_padding
        self._generator = generator

    def act(self, step: int) -> NDArray[np.int64]:
        """Actions [N] int64, where environment i takes step `step + i`."""
        count = len(self._stacks_array)
        epsilons = [self._epsilon(step + i) for i in range(count)]
        explores = self._generator.random(count) < epsilons
        if self._reject_padding:
            explores |= self._memory.needs_padding()
        actions = self._generator.integers(self._num_actions, size=count)
        if not explores.all():  # in the warm-up no network is needed
            self._memory.stacks_into(self._stacks_array)
            np.copyto(actions, self._policy(), where=~explores)
        return actions


class GreedyPolicy:
    """A policy by a network on a lane's device: `values` gives [N, A] for stacks there.

    Everything is queued for computing, behind the updates that were queued before: the actions are
    by their weights. The host waits for the actions alone, which it needs to go on.
    """

    def __init__(
        self,
        values: Callable[[Tensor], Tensor],
        stacks: Tensor,
        lane: Lane,
        replayed: Callable[[Callable[..., object]], Callable[..., object]],
    ) -> None:
        self._values = values
        self._lane = lane
        self._stacks = (stacks, lane.device_tensor(stacks))
        host = torch.empty(len(stacks), dtype=torch.int64, pin_memory=lane.pinned)
        self._actions = (lane.device_tensor(host), host)
        self._arrived = lane.event()
        self._choose = replayed(self._choose_for)

    @torch.no_grad()
    def __call__(self) -> NDArray[np.int64]:
        """See `Policy`."""
        (stacks, device_stacks), (device_actions, actions) = self._stacks, self._actions
        copy_all([stacks], [device_stacks])
        self._choose(device_stacks)
        copy_all([device_actions], [actions])
        self._lane.record_computed(self._arrived)
        self._arrived.synchronize()  # the stacks have been read by then, too
        return actions.numpy()

    def _choose_for(self, stacks: Tensor) -> None:
        self._actions[0].copy_(self._values(stacks).argmax(1))
