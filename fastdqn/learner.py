"""The update: from a batch of transitions to better weights.

Knows tensors only: not where transitions come from, nor when an update is due. Nothing here reads
a tensor back to the host, so that on a GPU updates queue up behind one another.

Notation as in the papers: `q_tm1` [B, A] are the values of the states that were acted in, `a_tm1`
[B] the actions taken, `r_t` [B] the rewards that followed, `discount_t` [B] the weight of the next
value (gamma^m, or 0 where a termination ended the window), `q_t_value` [B, A] and `q_t_selector`
[B, A] the next state's values by the target network and by whichever network selects the action.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["Learner", "MetricMeans", "Metrics", "q_learning_errors"]


class Metrics(NamedTuple):
    """What an update says about itself, still on the device."""

    loss: Tensor  # [] float32
    mean_q: Tensor  # [] float32: mean over the batch of the taken actions' values


class MetricMeans:
    """Means of metrics over many updates, read back to the host once."""

    def __init__(self) -> None:
        self._sum: Metrics | None = None
        self._count = 0

    def add(self, metrics: Metrics) -> None:
        """Take one update into account."""
        last = self._sum
        self._sum = (
            metrics
            if last is None
            else Metrics(last.loss + metrics.loss, last.mean_q + metrics.mean_q)
        )
        self._count += 1

    def save_state(self) -> dict[str, Any]:
        """What has come since the last call of `read`. Waits for the device."""
        total = None if self._sum is None else torch.stack(self._sum).tolist()
        return {"sum": total, "count": self._count}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from such a state."""
        total = state["sum"]
        self._sum = None if total is None else Metrics(*map(torch.tensor, total))
        self._count = state["count"]

    def read(self) -> tuple[float, float]:
        """Loss and mean value since the last call, NaN without an update. Waits for the device."""
        total, count = self._sum, self._count
        self._sum, self._count = None, 0
        if total is None:
            return float("nan"), float("nan")
        loss, mean_q = (torch.stack(total) / count).tolist()
        return loss, mean_q


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
    with `q_t_value` itself it is the maximum of Mnih et al. 2015. Gradients flow through `q_tm1`.
    Raises `ValueError` where shapes differ from the above: [B, 1] against [B] would broadcast.
    """
    batch, actions = a_tm1.shape[0], q_tm1.shape[-1]
    _check_shapes((batch, actions), q_tm1=q_tm1, q_t_value=q_t_value, q_t_selector=q_t_selector)
    _check_shapes((batch,), a_tm1=a_tm1, r_t=r_t, discount_t=discount_t)

    qa_tm1 = q_tm1.gather(1, a_tm1.unsqueeze(1)).squeeze(1)
    a_t = q_t_selector.argmax(1, keepdim=True)
    target_tm1 = r_t + discount_t * q_t_value.gather(1, a_t).squeeze(1)
    return target_tm1.detach() - qa_tm1, qa_tm1


def _check_shapes(expected: tuple[int, ...], **tensors: Tensor) -> None:
    for name, tensor in tensors.items():
        if tensor.shape != expected:
            raise ValueError(f"{name}: expected shape {expected}, got {tuple(tensor.shape)}")


class Learner:
    """The online and the target network, the loss and the optimizer.

    `online` is trained in place by `optimizer`, which was made for its weights; the target network
    starts as its copy. With `target_tau` the target network moves by that fraction after each
    update.
    """

    def __init__(
        self,
        online: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        num_actions: int,
        double: bool,
        loss: Literal["huber", "squared"],
        loss_reduction: Literal["mean", "sum"],
        max_grad_norm: float | None,
        target_tau: float | None,
    ) -> None:
        self.online = online
        self.target = copy.deepcopy(online).requires_grad_(False)
        self.optimizer = optimizer
        self._num_actions = num_actions
        self._double = double
        self._loss = F.huber_loss if loss == "huber" else F.mse_loss
        self._reduction = loss_reduction
        self._max_grad_norm = max_grad_norm
        self._target_tau = target_tau

    @property
    def nbytes(self) -> int:
        """Bytes of both networks, the gradients and the optimizer's two moments."""
        return 5 * sum(weight.nbytes for weight in self.online.parameters())

    def update(
        self,
        states: Tensor,
        actions: Tensor,
        rewards: Tensor,
        discounts: Tensor,
        next_states: Tensor,
    ) -> Metrics:
        """One gradient step on a batch: states and next states [B, stack, *frame_shape], the rest
        [B]. Raises `ValueError` for other shapes, those of the network's head included.
        """
        with torch.no_grad():
            q_t_value = self.target(next_states)
            q_t_selector = self.online(next_states) if self._double else q_t_value
        q_tm1 = self.online(states)
        if q_tm1.shape[-1] != self._num_actions:
            raise ValueError(
                f"the network's head gives {q_tm1.shape[-1]} values for {self._num_actions} actions"
            )
        td_error, qa_tm1 = q_learning_errors(
            q_tm1, actions, rewards, discounts, q_t_value, q_t_selector
        )
        # Huber's gradient is the error inside +-1 and its sign outside: the error is never clipped
        # before it is squared, which would stop learning where it is most wrong.
        loss = self._loss(td_error, torch.zeros_like(td_error), reduction=self._reduction)

        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        if self._max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.online.parameters(), self._max_grad_norm)
        self.optimizer.step()
        if self._target_tau is not None:
            with torch.no_grad():
                for target, weight in self._target_pairs():
                    target.lerp_(weight, self._target_tau)
        return Metrics(loss.detach(), qa_tm1.detach().mean())

    @torch.no_grad()
    def copy_target(self) -> None:
        """Make the target network equal to the online network."""
        for target, weight in self._target_pairs():
            target.copy_(weight)

    def save_state(self) -> dict[str, Any]:
        """Copies of all weights and of the optimizer's state, as arrays on the host."""
        state = self.optimizer.state_dict()["state"]
        return {
            "online": _arrays(self.online.state_dict()),
            "target": _arrays(self.target.state_dict()),
            "optimizer": {str(number): _arrays(tensors) for number, tensors in state.items()},
        }

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from such a state. Raises `ValueError` where it is of another network."""
        optimizer = {int(number): _tensors(item) for number, item in state["optimizer"].items()}
        # A fused optimizer goes through weights and moments as they lie in memory.
        for number, weight in enumerate(self.online.parameters()):
            for name, tensor in optimizer.get(number, {}).items():
                if tensor.shape == weight.shape:
                    optimizer[number][name] = torch.empty_like(weight).copy_(tensor)
        groups = self.optimizer.state_dict()["param_groups"]
        self.load_weights(_tensors(state["online"]), _tensors(state["target"]))
        self.optimizer.load_state_dict({"state": optimizer, "param_groups": groups})

    def load_weights(
        self, online: Mapping[str, Tensor], target: Mapping[str, Tensor] | None = None
    ) -> None:
        """Take over the weights of a network of the same form; without `target`, for both."""
        try:
            self.online.load_state_dict(online)
            self.target.load_state_dict(online if target is None else target)
        except RuntimeError as error:
            raise ValueError(" ".join(str(error).split())) from None

    def _target_pairs(self) -> Iterator[tuple[Tensor, Tensor]]:
        return zip(self.target.parameters(), self.online.parameters(), strict=True)


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in tensors.items()}


def _tensors(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.asarray(array)) for name, array in arrays.items()}
