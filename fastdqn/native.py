"""The passes of the Nature network in the C++ core: one call forwards, one backwards.

Between PyTorch's operations one thread prepares the next call while the others wait, and every
operation reads what the last one wrote through memory. Here nothing lies between the layers. What
is computed is what `ExplicitPasses` computes; sums are in another order.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fastdqn._core import NatureNetwork
from fastdqn.inputs import Inputs
from fastdqn.networks import ConvReLU, NatureCNN
from fastdqn.threads import compute_threads

__all__ = ["NativePasses"]


class NativePasses:
    """The passes of a `NatureCNN` on a CPU, in float32 or bfloat16: see `Passes`.

    Images are read where they lie, so they have to stay as they are between `forward` and
    `backward`. `supports` says for which networks.
    """

    def __init__(self, network: NatureCNN, dtype: torch.dtype = torch.float32) -> None:
        self._weights = [*network.parameters()]
        self._num_actions = network.values.weight.shape[0]
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
        self._grads: list[Tensor] = []
        self.refresh()

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
        values = torch.empty(len(inputs), self._num_actions)
        arrays = [_in_memory_order(part).numpy() for part in inputs.parts]
        self._network.values_into(compute_threads(), arrays, values.numpy())
        return values

    def forward(self, inputs: Inputs, learned: int) -> Tensor:
        values = torch.empty(len(inputs), self._num_actions)
        arrays = [_in_memory_order(part).numpy() for part in inputs.parts]
        self._network.forward_into(compute_threads(), arrays, learned, values.numpy())
        return values

    def backward(self, grad: Tensor) -> None:
        if not self._grads:
            self._grads = [torch.empty_like(weight) for weight in self._weights]
            self._grad_arrays = [_in_memory_order(grad).numpy() for grad in self._grads]
        self._network.backward_into(
            compute_threads(), grad.detach().contiguous().numpy(), self._grad_arrays
        )
        for weight, own in zip(self._weights, self._grads, strict=True):
            weight.grad = own


def _in_memory_order(tensor: Tensor) -> Tensor:
    """A channels-last tensor with the axes as they lie in memory."""
    return tensor.permute(0, 2, 3, 1) if tensor.dim() == 4 else tensor
