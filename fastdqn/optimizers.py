"""The optimizers: centred RMSProp as the Nature paper's code has it, and Adam in one pass."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import torch
from torch import nn

__all__ = ["Adam", "CenteredRMSProp", "make_optimizer"]


class Adam(torch.optim.Adam):
    """PyTorch's fused Adam without its bookkeeping, which costs as much as a third of the step.

    State and results are PyTorch's own. Every weight needs a gradient.
    """

    def __init__(
        self, parameters: Iterable[nn.Parameter], *, learning_rate: float, epsilon: float
    ) -> None:
        super().__init__(parameters, lr=learning_rate, eps=epsilon, fused=True)
        for group in self.param_groups:
            for weight in group["params"]:
                self.state[weight] = {
                    # On the device, so that a step is all queued work.
                    "step": torch.zeros((), device=weight.device),
                    "exp_avg": torch.zeros_like(weight),
                    "exp_avg_sq": torch.zeros_like(weight),
                }

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move every weight. Closures are not supported."""
        if closure is not None:
            raise TypeError("Adam takes no closure: compute the gradients first")
        for group in self.param_groups:
            weights = group["params"]
            states = [self.state[weight] for weight in weights]
            steps = [state["step"] for state in states]
            torch._foreach_add_(steps, 1)
            torch._fused_adam_(
                weights,
                [weight.grad for weight in weights],
                [state["exp_avg"] for state in states],
                [state["exp_avg_sq"] for state in states],
                [],
                steps,
                lr=group["lr"],
                beta1=group["betas"][0],
                beta2=group["betas"][1],
                weight_decay=0.0,
                eps=group["eps"],
                amsgrad=False,
                maximize=False,
            )


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
    """Adam, which `decay` means nothing to, or centred RMSProp, for weights on a CPU or CUDA."""
    if name == "rmsprop_centered":
        return CenteredRMSProp(
            parameters, learning_rate=learning_rate, decay=decay, epsilon=epsilon
        )
    return Adam(parameters, learning_rate=learning_rate, epsilon=epsilon)
