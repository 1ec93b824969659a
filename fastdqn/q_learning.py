"""The error of (double) Q-learning, its loss and the loss's gradient.

Notation as in the papers: `q_tm1` [B, A] are the values of the states that were acted in, `a_tm1`
[B] the actions taken, `r_t` [B] the rewards that followed, `discount_t` [B] the weight of the next
value (gamma^m, or 0 where a termination ended the window), `q_t_value` [B, A] and `q_t_selector`
[B, A] the next state's values by the target network and by whichever network selects the action.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fastdqn._core import q_learning_into

__all__ = ["Metrics", "QLearningLoss", "q_learning_errors"]


def q_learning_errors(
    q_tm1: Tensor,
    a_tm1: Tensor,
    r_t: Tensor,
    discount_t: Tensor,
    q_t_value: Tensor,
    q_t_selector: Tensor,
) -> tuple[Tensor, Tensor]:
    """The temporal-difference errors [B] of (double) Q-learning, and the values [B] they correct.

    With `q_t_selector` the online network's values this is van Hasselt et al. 2016, equation 4;
    with `q_t_value` itself it is the maximum of Mnih et al. 2015. Raises `ValueError` where shapes
    differ from the above: [B, 1] against [B] would broadcast.
    """
    batch, actions = a_tm1.shape[0], q_tm1.shape[-1]
    _check_shapes((batch, actions), q_tm1=q_tm1, q_t_value=q_t_value, q_t_selector=q_t_selector)
    _check_shapes((batch,), a_tm1=a_tm1, r_t=r_t, discount_t=discount_t)

    qa_tm1 = q_tm1.gather(1, a_tm1.unsqueeze(1)).squeeze(1)
    a_t = q_t_selector.argmax(1, keepdim=True)
    target_tm1 = r_t + discount_t * q_t_value.gather(1, a_t).squeeze(1)
    return target_tm1 - qa_tm1, qa_tm1


def _check_shapes(expected: tuple[int, ...], **tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.shape != expected:
            raise ValueError(f"{name}: expected shape {expected}, got {tuple(tensor.shape)}")


class Metrics(NamedTuple):
    """What an update says about itself: numbers, or tensors [] that are still on the device."""

    loss: Tensor | float
    mean_q: Tensor | float
    """Mean over the batch of the taken actions' values."""


class QLearningLoss:
    """The loss of the errors. On a CPU the C++ core computes it: so few numbers cost PyTorch's
    operations more in calls than in computing."""

    _uses_core = True

    def __init__(
        self, loss: Literal["huber", "squared"], reduction: Literal["mean", "sum"]
    ) -> None:
        self.huber = loss == "huber"
        """Of Huber's loss with its bend at 1; of squares otherwise."""
        self.mean = reduction == "mean"
        """Over the batch; the sum otherwise."""

    @torch.no_grad()
    def __call__(
        self,
        q_tm1: Tensor,
        a_tm1: Tensor,
        r_t: Tensor,
        discount_t: Tensor,
        q_t_value: Tensor,
        q_t_selector: Tensor,
    ) -> tuple[Metrics, Tensor]:
        """Also the loss's gradient [B, A] by `q_tm1`. Arguments as those of `q_learning_errors`,
        and refused like them."""
        if self._uses_core and q_tm1.device.type == "cpu" and q_tm1.dtype == torch.float32:
            grad = torch.empty_like(q_tm1)
            metrics = q_learning_into(
                q_tm1.numpy(),
                a_tm1.numpy(),
                r_t.numpy(),
                discount_t.numpy(),
                q_t_value.numpy(),
                q_t_selector.numpy(),
                grad.numpy(),
                huber=self.huber,
                mean=self.mean,
            )
            return Metrics(*metrics), grad
        error, qa_tm1 = q_learning_errors(q_tm1, a_tm1, r_t, discount_t, q_t_value, q_t_selector)
        loss, grad_of_taken = self.of_errors(error)
        grad = torch.zeros_like(q_tm1).scatter_(1, a_tm1.unsqueeze(1), grad_of_taken.unsqueeze(1))
        return Metrics(loss, qa_tm1.mean()), grad

    def of_errors(self, td_error: Tensor) -> tuple[Tensor, Tensor]:
        """The loss [] and its gradient [B] by the values that the errors correct."""
        zero = torch.zeros_like(td_error)
        # Huber's gradient is the error inside +-1 and its sign outside: the error is never clipped
        # before it is squared, which would stop learning where it is most wrong.
        reduction = "mean" if self.mean else "sum"
        if self.huber:
            loss = F.huber_loss(td_error, zero, reduction=reduction)
            grad = td_error.clamp(-1, 1)
        else:
            loss = F.mse_loss(td_error, zero, reduction=reduction)
            grad = td_error * 2
        scale = 1 / len(td_error) if self.mean else 1.0
        return loss, grad.mul_(-scale)
