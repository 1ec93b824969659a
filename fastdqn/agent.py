"""A trained network ready to play: what `load_agent` returns and `evaluate` takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from fastdqn.config import Config

__all__ = ["Agent"]


class Agent:
    """Values and actions for stacks of observations.

    A stack is `[stack, *frame_shape]` in the observations' own dtype, such as (4, 84, 84) uint8,
    oldest observation first; a batch of them has one more axis in front.
    """

    def __init__(
        self,
        network: nn.Module,
        config: Config,
        *,
        frame_shape: tuple[int, ...],
        dtype: str,
        num_actions: int,
        protocol: dict[str, Any],
        device: torch.device,
    ) -> None:
        self.network = network.to(device)
        self.config = config
        self.frame_shape = frame_shape
        self.dtype = np.dtype(dtype)
        self.num_actions = num_actions
        self.protocol = protocol
        self.device = device
        self._generator = np.random.default_rng(config.seed)

    @torch.inference_mode()
    def q_values(self, stack: NDArray[Any]) -> NDArray[np.float32]:
        """Each action's value: [A] float32 for one stack, [B, A] for a batch.

        Raises `ValueError` for another shape, `TypeError` for another dtype.
        """
        stack = np.asarray(stack)
        shape = (self.config.stack, *self.frame_shape)
        if stack.shape != shape and stack.shape[1:] != shape:
            raise ValueError(f"expected a stack {shape} or a batch of them, got {stack.shape}")
        if stack.dtype != self.dtype:
            raise TypeError(f"expected a stack of {self.dtype}, got {stack.dtype}")
        batch = torch.from_numpy(np.array(stack.reshape(-1, *shape)))
        values: NDArray[np.float32] = self.network(batch.to(self.device)).cpu().numpy()
        return values if stack.ndim > len(shape) else values[0]

    def act(self, stack: NDArray[Any], epsilon: float = 0.0) -> NDArray[np.int64]:
        """The best action, [] int64 for one stack and [B] for a batch; with probability `epsilon`
        a random one, from the agent's own seeded generator."""
        best = self.q_values(stack).argmax(-1)
        explores = self._generator.random(best.shape) < epsilon
        random = self._generator.integers(self.num_actions, size=best.shape)
        actions: NDArray[np.int64] = np.where(explores, random, best)
        return actions
