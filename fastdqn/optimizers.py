"""The optimizers: centred RMSProp as the Nature paper's code has it, and PyTorch's Adam."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import torch
from torch import nn

__all__ = ["CenteredRMSProp", "make_optimizer"]


class CenteredRMSProp(torch.optim.Optimizer):
    """RMSProp that divides by the gradient's running deviation, with epsilon inside the root.

    For a gradient d: g <- decay g + (1 - decay) d; s <- decay s + (1 - decay) d^2;
    w <- w - learning_rate d / sqrt(s - g^2 + epsilon). `torch.optim.RMSprop(centered=True)` adds
    epsilon outside the root, which is another optimizer at these values (0.01).

    Source: DeepMind's DQN 3.0 Lua code, NeuralQLearner.lua.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        learning_rate: float,
        decay: float,
        epsilon: float,
    ) -> None:
        super().__init__(parameters, {"lr": learning_rate, "decay": decay, "epsilon": epsilon})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move every parameter that has a gradient. Closures are not supported."""
        if closure is not None:
            raise TypeError("CenteredRMSProp takes no closure: compute the gradients first")
        for group in self.param_groups:
            decay, epsilon = group["decay"], group["epsilon"]
            for parameter in group["params"]:
                gradient = parameter.grad
                if gradient is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["mean"] = torch.zeros_like(parameter)
                    state["mean_square"] = torch.zeros_like(parameter)
                mean, mean_square = state["mean"], state["mean_square"]
                mean.mul_(decay).add_(gradient, alpha=1 - decay)
                mean_square.mul_(decay).addcmul_(gradient, gradient, value=1 - decay)
                # A variance is never below zero, but its rounded difference can be.
                variance = torch.addcmul(mean_square, mean, mean, value=-1).clamp_(min=0)
                root = variance.add_(epsilon).sqrt_()
                parameter.addcdiv_(gradient, root, value=-group["lr"])


def make_optimizer(
    name: Literal["adam", "rmsprop_centered"],
    parameters: Iterable[nn.Parameter],
    *,
    learning_rate: float,
    epsilon: float,
    decay: float,
) -> torch.optim.Optimizer:
    """Adam (without `decay`), fused where the device can: one pass over all weights; or ours."""
    parameters = list(parameters)
    if name == "rmsprop_centered":
        return CenteredRMSProp(
            parameters, learning_rate=learning_rate, decay=decay, epsilon=epsilon
        )
    fused = all(parameter.device.type in ("cpu", "cuda") for parameter in parameters)
    return torch.optim.Adam(parameters, lr=learning_rate, eps=epsilon, fused=fused)
