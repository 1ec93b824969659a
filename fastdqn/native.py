"""The Nature network in the C++ core: its passes, one call each, and a whole update.

Between PyTorch's operations one thread prepares the next call while the others wait, and every
operation reads what the last one wrote through memory. Here nothing lies between the layers. What
is computed is what `ExplicitPasses` computes; sums are in another order.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastdqn._core import NatureNetwork, NatureUpdate, ThreadPool
from fastdqn.inputs import Inputs
from fastdqn.networks import ConvReLU, NatureCNN
from fastdqn.optimizers import Adam
from fastdqn.q_learning import Metrics, QLearningLoss
from fastdqn.threads import compute_threads, own_thread

__all__ = ["NativePasses", "NativeUpdate"]

MOST_ROWS_ALONE = 8
"""Rows whose values are computed on the caller's thread where the others are busy."""
MOST_BATCHES_KNOWN = 4


class NativePasses:
    """The passes of a `NatureCNN` on a CPU, in float32 or bfloat16: see `Passes`.

    Images are read where they lie, so they have to stay as they are between `forward` and
    `backward`. `supports` says for which networks.
    """

    def __init__(self, network: NatureCNN, dtype: torch.dtype = torch.float32) -> None:
        self._weights = [*network.parameters()]
        self.num_actions = network.values.weight.shape[0]
        """Values that a row has."""
        first = network.convolutions[0]
        assert isinstance(first, ConvReLU)
        height, width = network.frame_shape
        self._network = NatureNetwork(
            [_in_memory_order(weight.detach()).numpy() for weight in self._weights],
            height=height,
            width=width,
            first_padding=int(first.padding[0]),
            bfloat16=dtype == torch.bfloat16,
        )
        # What is never written takes no memory.
        self._grads = [torch.empty_like(weight) for weight in self._weights]
        self._grad_arrays = [_in_memory_order(grad).detach().numpy() for grad in self._grads]
        # Whose threads are busy: values of few rows leave them alone.
        self._under_way: weakref.WeakSet[NativeUpdate] = weakref.WeakSet()
        self._known: dict[tuple[Any, ...], tuple[NDArray[Any], ...]] = {}
        self.refresh()

    @property
    def few_rows(self) -> int:
        """Values of fewer rows than this are rounded otherwise than among more; 0: of none."""
        return self._network.few_rows

    @staticmethod
    def supports(network: NatureCNN, dtype: torch.dtype) -> bool:
        """Whether this processor computes such a network faster here than PyTorch does."""
        weights = [*network.parameters()]
        return (
            dtype in (torch.float32, torch.bfloat16)
            and NatureNetwork.is_available(bfloat16=dtype == torch.bfloat16)
            and weights[0].shape[1] % 2 == 0  # frames in a stack
            and all(weight.device.type == "cpu" for weight in weights)
            and all(weight.dtype == torch.float32 for weight in weights)
            and all(_in_memory_order(weight).is_contiguous() for weight in weights)
        )

    def refresh(self) -> None:
        self._network.refresh(compute_threads())

    def inputs(self, *stacks: Tensor) -> Inputs:
        NatureCNN.check_dtype(*stacks)
        return Inputs(tuple(part.contiguous(memory_format=torch.channels_last) for part in stacks))

    def values(self, inputs: Inputs) -> Tensor:
        values = torch.empty(len(inputs), self.num_actions)
        arrays = [_in_memory_order(part).numpy() for part in inputs.parts]
        self._network.values_into(self._threads_for(len(inputs)), arrays, values.numpy())
        return values

    def policy(self, stacks: Tensor) -> Callable[[], NDArray[np.int64]]:
        """The greedy actions [N] of the stacks [N, stack, height, width] that lie there at each
        call, in memory that the next call overwrites."""
        (in_order,) = self.inputs(stacks).parts
        assert in_order.data_ptr() == stacks.data_ptr(), "not the memory that will be written"
        arrays = [_in_memory_order(in_order).numpy()]
        actions = np.empty(len(stacks), np.int64)

        def choose() -> NDArray[np.int64]:
            self._network.actions_into(self._threads_for(len(actions)), arrays, actions)
            return actions

        return choose

    def arrays_of(self, batch: Sequence[Tensor]) -> tuple[NDArray[Any], ...]:
        """A batch as the core takes it. A trainer's lie in the same few places again and again, and
        to make arrays of tensors takes longer than to begin with them."""
        place = tuple((t.data_ptr(), t.shape, t.stride(), t.dtype, t.device.type) for t in batch)
        if (known := self._known.get(place)) is not None:
            return known
        states, actions, rewards, discounts, next_states = batch
        parts = self.inputs(states, next_states).parts
        arrays = (
            _in_memory_order(parts[0]).numpy(),
            actions.numpy(),
            rewards.numpy(),
            discounts.numpy(),
            _in_memory_order(parts[1]).numpy(),
        )
        # What had to be copied is copied anew each time.
        if [part.data_ptr() for part in parts] == [states.data_ptr(), next_states.data_ptr()]:
            if len(self._known) == MOST_BATCHES_KNOWN:
                del self._known[next(iter(self._known))]
            self._known[place] = arrays
        return arrays

    def _threads_for(self, rows: int) -> ThreadPool:
        alone = self._under_way and rows <= MOST_ROWS_ALONE
        return own_thread() if alone else compute_threads()

    def forward(self, inputs: Inputs, learned: int) -> Tensor:
        values = torch.empty(len(inputs), self.num_actions)
        arrays = [_in_memory_order(part).numpy() for part in inputs.parts]
        self._network.forward_into(compute_threads(), arrays, learned, values.numpy())
        return values

    def is_all_of(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether the optimizer moves the network's weights and no others."""
        moved = [weight for group in optimizer.param_groups for weight in group["params"]]
        return [*map(id, moved)] == [*map(id, self._weights)]

    def backward(self, grad: Tensor) -> None:
        self._network.backward_into(
            compute_threads(), grad.detach().contiguous().numpy(), self._grad_arrays
        )
        for weight, own in zip(self._weights, self._grads, strict=True):
            weight.grad = own


class NativeUpdate:
    """A whole update by (double) Q-learning and Adam, by the C++ core: see `NatureUpdate`.

    Nothing waits between its parts, and most weights are moved while their gradient is still in a
    cache, so that none is left in `weight.grad`. The numbers are those of the parts in turn.
    The batch stays as it is until `finish`.
    """

    def __init__(
        self,
        online: NativePasses,
        target: NativePasses,
        optimizer: Adam,
        loss: QLearningLoss,
        *,
        double: bool,
        batch: Sequence[Tensor],
    ) -> None:
        self._online = online
        self._optimizer = optimizer
        self._update = NatureUpdate(
            compute_threads(),
            online._network,
            target._network,
            online.arrays_of(batch),
            double=double,
            huber=loss.huber,
            mean=loss.mean,
        )

    def begin(self) -> None:
        """Have other threads begin, while the caller does something else."""
        self._update.begin()
        self._online._under_way.add(self)

    def finish(self) -> Metrics | None:
        """Move the online network's weights; None where the optimizer's state does not suit."""
        online = self._online
        online._under_way.discard(self)
        step = self._optimizer.begin_core_step(online._grads)
        if step is None:
            del self._update  # and wait until nothing computes it any more
            return None
        metrics = self._update.finish(online._grad_arrays, step.adam, **step.factors)
        self._optimizer.count_step()  # an update that was refused is none
        return Metrics(*metrics)


def _in_memory_order(tensor: Tensor) -> Tensor:
    """A channels-last tensor with the axes as they lie in memory."""
    return tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor
