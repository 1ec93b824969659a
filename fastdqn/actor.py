"""The actor: epsilon-greedy actions for all environments at once.

It knows nothing of learning. What it shows to the network comes from the same stacking as the
batches that the network is trained on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Actor", "Stacks"]


class Stacks(Protocol):
    """What the actor needs of a replay memory."""

    def stacks_into(self, out: NDArray[Any]) -> None:
        """Write each environment's current stack to `out` [N, stack, *frame_shape]."""

    def needs_padding(self) -> NDArray[np.bool_]:
        """[N]: whose current stack would need padding."""


class Actor:
    """Chooses an action for each environment.

    `values` is the network: [N, A] for stacks [N, stack, *frame_shape] on `device`. `stacks` is a
    host tensor of that shape that the actor fills anew each time. With `reject_padding` it acts at
    random where a stack would need padding.
    """

    def __init__(
        self,
        values: Callable[[Tensor], Tensor],
        memory: Stacks,
        stacks: Tensor,
        *,
        num_actions: int,
        device: torch.device,
        epsilon: Callable[[int], float],
        reject_padding: bool,
        generator: np.random.Generator,
    ) -> None:
        self._values = values
        self._memory = memory
        self._stacks = stacks
        self._stacks_array = stacks.numpy()
        self._num_actions = num_actions
        self._device = device
        self._epsilon = epsilon
        self._reject_padding = reject_padding
        self._generator = generator

    def act(self, step: int) -> NDArray[np.int64]:
        """Actions [N] int64, where environment i takes step `step + i`."""
        count = len(self._stacks)
        epsilons = np.fromiter((self._epsilon(step + i) for i in range(count)), np.float64, count)
        explores = self._generator.random(count) < epsilons
        if self._reject_padding:
            explores |= self._memory.needs_padding()
        actions = self._generator.integers(self._num_actions, size=count)
        if not explores.all():  # in the warm-up no network is needed
            greedy = self._greedy_actions()
            actions[~explores] = greedy[~explores]
        return actions

    @torch.no_grad()
    def _greedy_actions(self) -> NDArray[np.int64]:
        self._memory.stacks_into(self._stacks_array)
        stacks = self._stacks.to(self._device, non_blocking=True)
        # Reading the actions waits for the device: the environments need them, and once they are
        # here the copy of the stacks is over too.
        return self._values(stacks).argmax(1).cpu().numpy()
