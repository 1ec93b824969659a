"""The optimizers: centred RMSProp as the Nature paper's code has it, and Adam in one pass.

On a CPU that it has instructions for, Adam's pass is the C++ core's: its threads are those that
compute the network, where PyTorch's own would fight with them for the cores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any, Literal, NamedTuple, TypedDict

import torch
from torch import Tensor, nn

from fastdqn._core import AdamStep
from fastdqn.threads import compute_threads

__all__ = ["Adam", "CenteredRMSProp", "make_optimizer"]


class AdamFactors(TypedDict):
    """What one step is by."""

    learning_rate: float
    beta1: float
    beta2: float
    epsilon: float
    step: float  # counts from 1


class CoreStep(NamedTuple):
    """A step of Adam in the C++ core."""

    adam: AdamStep
    factors: AdamFactors


class Adam(torch.optim.Adam):
    """PyTorch's fused Adam without its bookkeeping, which costs as much as a third of the step.

    State and results are PyTorch's own, to the last bit or nearly. Every weight needs a gradient.
    """

    _uses_core = AdamStep.is_available()

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
        self._begin()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of a copy, and of a state that is loaded."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self._begin()

    def state_dict(self) -> dict[str, Any]:
        """PyTorch's: a count of steps for each weight."""
        state = super().state_dict()
        state["state"] = {
            number: {**kept, "step": kept["step"].clone()} if "step" in kept else kept
            for number, kept in state["state"].items()
        }
        return state

    def _begin(self) -> None:
        self._core_step: tuple[list[int], AdamStep] | None = None
        # One count for all weights, which PyTorch counts one by one.
        counts = [state["step"] for state in self.state.values()]
        if all(torch.equal(count, counts[0]) for count in counts):
            for state in self.state.values():
                state["step"] = counts[0]

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Move every weight. Closures are not supported."""
        if closure is not None:
            raise TypeError("Adam takes no closure: compute the gradients first")
        (group,) = self.param_groups
        gradients = [weight.grad for weight in group["params"]]
        step = self.begin_core_step(gradients)
        if step is not None:
            step.adam.step(compute_threads(), **step.factors)
            self.count_step()
            return
        states = [self.state[weight] for weight in group["params"]]
        torch._foreach_add_(self._counts(), 1)
        beta1, beta2 = group["betas"]
        torch._fused_adam_(
            group["params"],
            gradients,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            lr=group["lr"],
            beta1=beta1,
            beta2=beta2,
            weight_decay=0.0,
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )

    @torch.no_grad()
    def begin_core_step(self, gradients: list[Tensor]) -> CoreStep | None:
        """The core's next step by these gradients, where it can do it: for the caller to do, and
        then to count."""
        (group,) = self.param_groups
        weights = group["params"]
        states = [self.state[weight] for weight in weights]
        columns = (
            weights,
            gradients,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
        )
        adam = self._core_step_on(columns)
        if adam is None:
            return None
        beta1, beta2 = group["betas"]
        factors: AdamFactors = {
            "learning_rate": group["lr"],
            "beta1": beta1,
            "beta2": beta2,
            "epsilon": group["eps"],
            "step": states[0]["step"].item() + 1,
        }
        return CoreStep(adam, factors)

    def count_step(self) -> None:
        """One more step has been done by the core."""
        for count in self._counts():
            on_host = count.numpy()  # a small part of the work of PyTorch's operation
            on_host += 1

    def _counts(self) -> list[Tensor]:
        """The counts of steps: one, unless somebody has made them several."""
        counts = {id(state["step"]): state["step"] for state in self.state.values()}
        return [*counts.values()]

    def _core_step_on(self, columns: tuple[list[Tensor], ...]) -> AdamStep | None:
        """The core's step on weights, gradients and moments, where it can do it."""
        if not self._uses_core:
            return None
        # Weights and gradients stay where they are, but nothing says so: look every time.
        places = [*map(Tensor.data_ptr, chain.from_iterable(columns))]
        if self._core_step is None or self._core_step[0] != places:
            for rows in zip(*columns, strict=True):
                if not all(_is_like(tensor, rows[0]) for tensor in rows):
                    return None
            arrays = [[_flat(tensor.detach()).numpy() for tensor in column] for column in columns]
            self._core_step = places, AdamStep(*arrays)
        return self._core_step[1]


def _is_like(tensor: Tensor, weight: Tensor) -> bool:
    """Whether both are the same numbers of float32, in the same order, on a CPU."""
    return (
        tensor.device.type == "cpu"
        and tensor.dtype == torch.float32
        and tensor.shape == weight.shape
        and tensor.stride() == weight.stride()
        and _flat(tensor).numel() == tensor.numel()
    )


def _flat(tensor: Tensor) -> Tensor:
    """A tensor without gaps, as it lies in memory; else another number of elements."""
    extent = 1 + sum((n - 1) * step for n, step in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.as_strided((extent if tensor.numel() else 0,), (1,))


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
