"""The networks that map stacks of observations to one value for each action.

They know tensors only. `[B, stack, *frame_shape]` in the observations' own dtype goes in, `[B, A]`
float32 comes out. The modules here hold the weights and say, in PyTorch's own operations, what is
computed from them; `fastdqn.passes` computes the same faster.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Literal

import numpy as np
import torch
from numpy.typing import DTypeLike
from torch import Tensor, nn
from torch.nn import functional as F

from fastdqn.errors import UserError

__all__ = ["MLP", "NatureCNN", "build_network", "empty_stacks"]

# Filters, kernel and stride of each convolution, and the units behind them: Mnih et al. 2015,
# Methods, "Model architecture".
_CONVOLUTIONS = ((32, 8, 4), (64, 4, 2), (64, 3, 1))
_HIDDEN_UNITS = 512


class NatureCNN(nn.Module):
    """The convolutional network of Mnih et al. 2015 for stacks of grey-scale frames.

    Inside, everything lies channels-last: convolutions are fastest so, and the flattening between
    them and the dense layers copies nothing. The dense layer therefore reads its inputs in the
    order row, column, channel.
    """

    input_scale = 1 / 255

    def __init__(
        self,
        stack: int,
        frame_shape: Sequence[int],
        num_actions: int,
        *,
        first_padding: int,
        shared_last_bias: bool,
    ) -> None:
        super().__init__()
        channels = stack
        height, width = frame_shape
        self.frame_shape = (int(height), int(width))
        layers: list[ConvReLU] = []
        for index, (filters, kernel, stride) in enumerate(_CONVOLUTIONS):
            padding = first_padding if index == 0 else 0
            layers.append(ConvReLU(channels, filters, kernel, stride, padding))
            channels = filters
            height, width = (
                (side + 2 * padding - kernel) // stride + 1 for side in (height, width)
            )
            if height < 1 or width < 1:
                raise UserError(
                    f"frames of {frame_shape[0]} by {frame_shape[1]} pixels are too small for the "
                    "convolutions: 36 by 36 is the least"
                )
        self.convolutions = nn.Sequential(*layers)
        self.hidden = LinearReLU(channels * height * width, _HIDDEN_UNITS)
        self.values = ActionValues(_HIDDEN_UNITS, num_actions, shared_bias=shared_last_bias)
        self.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, stacks: Tensor) -> Tensor:
        """`stacks` [B, stack, H, W] uint8, fastest in channels-last order -> [B, A] float32.

        Raises `TypeError` for another dtype, whose range of values nobody has said.
        """
        self.check_dtype(stacks)
        x = stacks.to(torch.float32, memory_format=torch.channels_last).mul_(self.input_scale)
        x = self.convolutions(x).permute(0, 2, 3, 1).flatten(1)
        return self.values(self.hidden(x))  # type: ignore[no-any-return]

    @staticmethod
    def check_dtype(*stacks: Tensor) -> None:
        """Raise `TypeError` for what is not images as bytes."""
        for part in stacks:
            if part.dtype != torch.uint8:
                raise TypeError(f"expected images of torch.uint8, got {part.dtype}")


class MLP(nn.Module):
    """Dense layers for stacks of vectors, which they see as one long vector."""

    def __init__(
        self,
        num_inputs: int,
        num_actions: int,
        hidden_units: Sequence[int],
        *,
        shared_last_bias: bool,
    ) -> None:
        super().__init__()
        sizes = (num_inputs, *hidden_units)
        self.hidden = nn.Sequential(*(LinearReLU(*shape) for shape in pairwise(sizes)))
        self.values = ActionValues(sizes[-1], num_actions, shared_bias=shared_last_bias)

    def forward(self, stacks: Tensor) -> Tensor:
        """`stacks` [B, stack, D] of any real dtype -> [B, A] float32."""
        return self.values(self.hidden(stacks.to(torch.float32).flatten(1)))  # type: ignore[no-any-return]


class ConvReLU(nn.Conv2d):
    """A convolution and its ReLU, with the same stride and padding in both directions."""

    def forward(self, x: Tensor) -> Tensor:
        """`x` [B, C, H, W] -> [B, filters, H', W']."""
        return F.relu(super().forward(x))


class LinearReLU(nn.Linear):
    """A dense layer and its ReLU."""

    def forward(self, x: Tensor) -> Tensor:
        """`x` [B, inputs] -> [B, outputs]."""
        return F.relu(super().forward(x))


class ActionValues(nn.Module):
    """The last layer: a value for each action, whose biases may be one for all."""

    def __init__(self, num_inputs: int, num_actions: int, *, shared_bias: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_actions, num_inputs))
        self.bias = nn.Parameter(torch.empty(1 if shared_bias else num_actions))
        bound = 1 / math.sqrt(num_inputs)
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, x: Tensor) -> Tensor:
        """`x` [B, inputs] float32 -> [B, A] float32."""
        return F.linear(x, self.weight, self.bias.expand(self.weight.shape[0]))


def build_network(
    frame_shape: Sequence[int],
    num_actions: int,
    *,
    stack: int,
    first_padding: int,
    shared_last_bias: bool,
    initial_weights: Literal["fan_in_uniform", "xavier_uniform"],
    hidden_units: Sequence[int],
) -> NatureCNN | MLP:
    """The network for observations of this shape: images [H, W] or vectors [D].

    `first_padding` is for images alone, `hidden_units` for vectors alone. Initial weights come from
    torch's global generator. Raises `UserError` for other shapes.
    """
    network: NatureCNN | MLP
    if len(frame_shape) == 2:
        network = NatureCNN(
            stack,
            frame_shape,
            num_actions,
            first_padding=first_padding,
            shared_last_bias=shared_last_bias,
        )
    elif len(frame_shape) == 1:
        network = MLP(
            stack * frame_shape[0], num_actions, hidden_units, shared_last_bias=shared_last_bias
        )
    else:
        raise UserError(
            f"observations of shape {tuple(frame_shape)}: expected grey-scale images (height, "
            "width) or vectors (length,)"
        )
    if initial_weights == "xavier_uniform":
        for parameter in network.parameters():
            if parameter.dim() > 1:
                nn.init.xavier_uniform_(parameter)
            else:
                nn.init.zeros_(parameter)
    return network


def empty_stacks(
    count: int,
    stack: int,
    frame_shape: Sequence[int],
    dtype: DTypeLike,
    *,
    pinned: bool = False,
) -> Tensor:
    """A host tensor [count, stack, *frame_shape] in the memory order that the networks read best.

    Images lie channels-last: the places of a frame outside, the frames of the stack innermost.
    """
    torch_dtype = torch.from_numpy(np.empty(0, dtype)).dtype
    if len(frame_shape) != 2:
        return torch.empty((count, stack, *frame_shape), dtype=torch_dtype, pin_memory=pinned)
    channels_last = torch.empty((count, *frame_shape, stack), dtype=torch_dtype, pin_memory=pinned)
    return channels_last.permute(0, 3, 1, 2)
