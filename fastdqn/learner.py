"""The update: from a batch of transitions to better weights.

Knows tensors only: not where transitions come from, nor when an update is due. Nothing here reads
a tensor back to the host, so that on a GPU updates queue up behind one another.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fastdqn.native import NativePasses, NativeUpdate
from fastdqn.optimizers import Adam
from fastdqn.passes import make_passes
from fastdqn.q_learning import Metrics, QLearningLoss

__all__ = ["Learner", "MetricMeans", "StartedUpdate"]


class MetricMeans:
    """Means of metrics over many updates, read back to the host once.

    Tensors are summed up on the device, always in the same memory: a CUDA graph may do it.
    """

    def __init__(self, device: torch.device) -> None:
        self._one = torch.ones((), device=device)
        # Of metrics and of ones, by where they are.
        self._on_device = torch.zeros(3, dtype=torch.float64, device=device)
        self._on_host = [0.0, 0.0, 0.0]

    def add(self, metrics: Metrics) -> None:
        """Take one update into account."""
        if isinstance(metrics.loss, Tensor) and isinstance(metrics.mean_q, Tensor):
            self._on_device.add_(torch.stack((metrics.loss, metrics.mean_q, self._one)))
            return
        for place, value in enumerate((metrics.loss, metrics.mean_q, 1.0)):
            self._on_host[place] += float(value)

    def save_state(self) -> dict[str, Any]:
        """What has come since the last call of `read`. Waits for the device."""
        return {"sums": self._sums()}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from such a state."""
        self._clear()
        self._on_host[:] = state["sums"]

    def read(self) -> tuple[float, float]:
        """Loss and mean value since the last call, NaN without an update. Waits for the device."""
        loss, mean_q, count = self._sums()
        self._clear()
        return (loss / count, mean_q / count) if count else (float("nan"), float("nan"))

    def _sums(self) -> list[float]:
        on_device: list[float] = self._on_device.tolist()
        return [a + b for a, b in zip(self._on_host, on_device, strict=True)]

    def _clear(self) -> None:
        self._on_device.zero_()
        self._on_host[:] = 0.0, 0.0, 0.0


class Learner:
    """The online and the target network, the loss and the optimizer.

    `online` is trained in place by `optimizer`, which was made for its weights; the target network
    starts as its copy. With `target_tau` the target network moves by that fraction after each
    update. The project's own networks compute in `dtype`; weights are float32 all the same. Who
    writes to the weights of `online` or `target` from outside calls `refresh` afterwards.
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
        dtype: torch.dtype = torch.float32,
    ) -> None:
        self.online = online
        self.target = copy.deepcopy(online).requires_grad_(False)
        self.optimizer = optimizer
        self.dtype = dtype
        self._online = make_passes(self.online, dtype)
        self._target = make_passes(self.target, dtype, packed=target_tau is None)
        self._num_actions = num_actions
        self._double = double
        self._loss = QLearningLoss(loss, loss_reduction)
        self._max_grad_norm = max_grad_norm
        self._target_tau = target_tau
        # Where nothing has to see all gradients before the step.
        self.overlaps = (
            isinstance(self._online, NativePasses)
            and isinstance(self._target, NativePasses)
            and isinstance(optimizer, Adam)
            and self._online.is_all_of(optimizer)
            and self._online.num_actions == num_actions
            and max_grad_norm is None
        )
        """Whether the C++ core does a whole update, which computes beside its caller."""

    @property
    def nbytes(self) -> int:
        """Bytes of both networks, the gradients, the optimizer's two moments and, at most, the
        copies of the weights that are computed with."""
        return 7 * sum(weight.nbytes for weight in self.online.parameters())

    def values(self, stacks: Tensor) -> Tensor:
        """[B, A] float32: the online network's values of stacks, to act by."""
        return self._online.values(self._online.inputs(stacks))

    def core_policy(self, stacks: Tensor) -> Callable[[], NDArray[np.int64]] | None:
        """The online network's greedy actions for host stacks that are filled anew, where the C++
        core chooses them: see `NativePasses.policy`."""
        return self._online.policy(stacks) if isinstance(self._online, NativePasses) else None

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
        return self._started((states, actions, rewards, discounts, next_states)).finish()

    def begin_update(self, batch: Sequence[Tensor]) -> StartedUpdate:
        """Begin what `update` does with a batch, which stays as it is until it is finished.

        Until then no weight changes, so that the values to act by do not depend on how far it is.
        """
        update = self._started(batch)
        if update.native is not None:
            update.native.begin()
        return update

    def _started(self, batch: Sequence[Tensor]) -> StartedUpdate:
        native = None
        if self.overlaps:
            assert isinstance(self._online, NativePasses)
            assert isinstance(self._target, NativePasses)
            assert isinstance(self.optimizer, Adam)
            native = NativeUpdate(
                self._online,
                self._target,
                self.optimizer,
                self._loss,
                double=self._double,
                batch=batch,
            )
        return StartedUpdate(self, batch, native)

    def _finish(self, batch: Sequence[Tensor], native: NativeUpdate | None) -> Metrics:
        metrics = None if native is None else native.finish()
        if metrics is None:
            metrics = self._update_in_parts(*batch)
        if self._target_tau is not None:
            with torch.no_grad():
                torch._foreach_lerp_(*self._target_pairs(), self._target_tau)
            self._target.refresh()
        return metrics

    def _update_in_parts(
        self,
        states: Tensor,
        actions: Tensor,
        rewards: Tensor,
        discounts: Tensor,
        next_states: Tensor,
    ) -> Metrics:
        count = len(states)
        inputs = self._online.inputs(states, next_states)
        with torch.no_grad():
            q_t_value = self._target.values(inputs[count:])
            # With double learning the online network sees both, side by side.
            q = self._online.forward(inputs if self._double else inputs[:count], count)
            q_tm1, q_t_selector = q[:count], q[count:] if self._double else q_t_value
            if q_tm1.shape[-1] != self._num_actions:
                raise ValueError(
                    f"the network's head gives {q_tm1.shape[-1]} values for {self._num_actions} "
                    "actions"
                )
            metrics, grad = self._loss(q_tm1, actions, rewards, discounts, q_t_value, q_t_selector)
            self._online.backward(grad)
        if self._max_grad_norm is not None:
            nn.utils.clip_grad_norm_(self.online.parameters(), self._max_grad_norm)
        self.optimizer.step()
        self._online.refresh()
        return metrics

    def copy_target(self) -> None:
        """Make the target network equal to the online network."""
        with torch.no_grad():
            torch._foreach_copy_(*self._target_pairs())
        self._target.refresh()

    def refresh(self) -> None:
        """Take over weights of either network that were written from outside."""
        self._online.refresh()
        self._target.refresh()

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
                own = torch.empty_like(weight if tensor.shape == weight.shape else tensor)
                optimizer[number][name] = own.copy_(tensor)
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
        self.refresh()

    def _target_pairs(self) -> tuple[list[Tensor], list[Tensor]]:
        return [*self.target.parameters()], [*self.online.parameters()]


class StartedUpdate:
    """An update that is to be finished: see `Learner.begin_update`."""

    def __init__(
        self, learner: Learner, batch: Sequence[Tensor], native: NativeUpdate | None
    ) -> None:
        self._learner = learner
        self.batch = batch
        self.native = native

    def finish(self) -> Metrics:
        """Move the weights. To be called once."""
        return self._learner._finish(self.batch, self.native)


def _arrays(tensors: Mapping[str, Tensor]) -> dict[str, NDArray[Any]]:
    return {name: tensor.detach().cpu().numpy().copy() for name, tensor in tensors.items()}


def _tensors(arrays: Mapping[str, NDArray[Any]]) -> dict[str, Tensor]:
    return {name: torch.from_numpy(np.asarray(array)) for name, array in arrays.items()}
