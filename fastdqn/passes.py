"""A network's passes: values forwards, gradients backwards.

`NativePasses` computes those of images in the C++ core, on processors that it has kernels for.
`ExplicitPasses` writes them out for the project's own networks, layer by layer, for every device;
`AutogradPasses` leaves those of any other module to PyTorch. These two wait for no device, and may
be captured in a CUDA graph.
"""

from __future__ import annotations

import itertools
from typing import Protocol

import torch
from torch import Tensor, nn

from fastdqn.inputs import Inputs
from fastdqn.layers import Convolution, Dense, Flattening, Layer, Values
from fastdqn.native import NativePasses
from fastdqn.networks import MLP, ConvReLU, LinearReLU, NatureCNN

__all__ = ["AutogradPasses", "ExplicitPasses", "Passes", "make_passes"]


class Passes(Protocol):
    """The passes of one network."""

    def refresh(self) -> None:
        """Take over the network's weights: to be called whenever they have changed."""

    def inputs(self, *stacks: Tensor) -> Inputs:
        """Batches of stacks, one behind the other, as the other passes take them. The stacks have
        to stay as they are until `backward`."""

    def values(self, inputs: Inputs) -> Tensor:
        """[B, A] float32, by the weights last taken over. No gradient flows through them."""

    def forward(self, inputs: Inputs, learned: int) -> Tensor:
        """The same, keeping of the first `learned` rows what `backward` needs."""

    def backward(self, grad: Tensor) -> None:
        """From the gradient [learned, A] of the kept rows' values set that of each weight."""


class ExplicitPasses:
    """The passes of `NatureCNN` and `MLP`, in float32 or bfloat16.

    In bfloat16 the weights stay float32, and so do their gradients and the last layer: products are
    of numbers rounded to bfloat16, summed in float32. `packed` is for weights that seldom change.
    """

    def __init__(
        self, network: NatureCNN | MLP, dtype: torch.dtype = torch.float32, *, packed: bool = False
    ) -> None:
        self._dtype = dtype
        self._images = isinstance(network, NatureCNN)
        self._layers: list[Layer] = []
        if isinstance(network, NatureCNN):
            # Bytes are exact in either dtype. Their scale goes into the weights.
            scale = network.input_scale
            for module in network.convolutions:
                assert isinstance(module, ConvReLU)
                self._layers.append(Convolution(module, dtype, input_scale=scale, packed=packed))
                scale = 1.0
            self._layers += [Flattening(), Dense(network.hidden, dtype, packed=packed)]
        else:
            for module in network.hidden:
                assert isinstance(module, LinearReLU)
                self._layers.append(Dense(module, dtype, packed=packed))
        self._layers.append(Values(network.values.weight, network.values.bias))
        self._inputs: dict[int, Tensor] = {}
        self._kept: list[Tensor] = []

    @torch.no_grad()
    def refresh(self) -> None:
        for layer in self._layers:
            layer.refresh()

    @torch.no_grad()
    def inputs(self, *stacks: Tensor) -> Inputs:
        """In memory that the next call with as many rows overwrites."""
        rows = sum(map(len, stacks))
        if self._images:
            NatureCNN.check_dtype(*stacks)
            shape, order = (rows, *stacks[0].shape[1:]), torch.channels_last
        else:
            shape, order = (rows, stacks[0][0].numel()), torch.contiguous_format
        if rows not in self._inputs:
            self._inputs[rows] = torch.empty(
                shape, dtype=self._dtype, device=stacks[0].device, memory_format=order
            )
        inputs = self._inputs[rows]
        start = 0
        for part in stacks:
            end = start + len(part)
            inputs[start:end].copy_(part if self._images else part.flatten(1))
            start = end
        return Inputs((inputs,))

    @torch.no_grad()
    def values(self, inputs: Inputs) -> Tensor:
        (x,) = inputs.parts
        for layer in self._layers:
            x = layer.forward(x)
        return x

    @torch.no_grad()
    def forward(self, inputs: Inputs, learned: int) -> Tensor:
        outputs = [*inputs.parts]
        for layer in self._layers:
            outputs.append(layer.forward(outputs[-1]))
        self._kept = [output[:learned] for output in outputs]
        return outputs[-1]

    @torch.no_grad()
    def backward(self, grad: Tensor) -> None:
        pairs = [*zip(self._layers, itertools.pairwise(self._kept), strict=True)]
        self._kept = []
        upstream: Tensor | None = grad
        for layer, (x, y) in reversed(pairs):
            assert upstream is not None
            # The observations need no gradient, which would cost as much as the layer itself.
            upstream = layer.backward(upstream, x, y, input_too=layer is not self._layers[0])


class AutogradPasses:
    """The passes of any module from [B, stack, *frame_shape] to [B, A] float32."""

    def __init__(self, network: nn.Module) -> None:
        self._network = network
        self._kept = torch.empty(0)

    def refresh(self) -> None:
        pass

    def inputs(self, *stacks: Tensor) -> Inputs:
        return Inputs((torch.cat(stacks),))

    @torch.no_grad()
    def values(self, inputs: Inputs) -> Tensor:
        (x,) = inputs.parts
        return self._network(x)  # type: ignore[no-any-return]

    def forward(self, inputs: Inputs, learned: int) -> Tensor:
        (x,) = inputs[:learned].parts
        with torch.enable_grad():
            self._kept = self._network(x)
        return torch.cat([self._kept.detach(), self.values(inputs[learned:])])

    def backward(self, grad: Tensor) -> None:
        self._network.zero_grad(set_to_none=True)
        self._kept.backward(grad)  # type: ignore[no-untyped-call]


def make_passes(
    network: nn.Module, dtype: torch.dtype = torch.float32, *, packed: bool = False
) -> Passes:
    """The fastest passes there are for this network. A foreign module computes in its own dtype."""
    if isinstance(network, NatureCNN) and NativePasses.supports(network, dtype):
        return NativePasses(network, dtype)
    if isinstance(network, (NatureCNN, MLP)):
        return ExplicitPasses(network, dtype, packed=packed)
    return AutogradPasses(network)
