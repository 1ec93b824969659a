"""Convolution and dense layers, each fused with its ReLU, as the networks use them.

On a CPU they call oneDNN directly, forwards and backwards: PyTorch itself sends float32 matrix
products to another library, which reaches half of oneDNN's speed on processors of some makers, and
runs the ReLU as a second pass. Where those operations are missing, and on every other device, they
are PyTorch's own. Gradients are exact; results differ in the last bits only.

The inputs' dtype is the one computed in: weights, which stay float32, are rounded to it on the
way, and their gradients come back in float32.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

__all__ = ["conv_relu", "linear", "linear_relu"]


def _has_onednn_operations() -> bool:
    operations = torch.ops.mkldnn
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and all(
        hasattr(operations, name) for name in ("_convolution_pointwise", "_linear_pointwise")
    )


_ONEDNN = _has_onednn_operations()


def conv_relu(x: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int) -> Tensor:
    """ReLU of a two-dimensional convolution: x [B, C, H, W], weight [F, C, k, k], bias [F]."""
    if _ONEDNN and x.device.type == "cpu":
        return _ConvReLU.apply(x, weight, bias, stride, padding)  # type: ignore[no-any-return,no-untyped-call]
    weight, bias = weight.to(x.dtype), bias.to(x.dtype)
    return F.relu(F.conv2d(x, weight, bias, stride, padding), inplace=True)


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """ReLU of a dense layer: x [B, inputs], weight [outputs, inputs], bias [outputs]."""
    if _ONEDNN and x.device.type == "cpu":
        return _LinearReLU.apply(x, weight, bias)  # type: ignore[no-any-return,no-untyped-call]
    return F.relu(linear(x, weight, bias), inplace=True)


def linear(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """A dense layer without a ReLU: x [B, inputs], weight [outputs, inputs], bias [outputs]."""
    return F.linear(x, weight.to(x.dtype), bias.to(x.dtype))


class _ConvReLU(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, stride: int, padding: int
    ) -> Tensor:
        weight, bias = weight.to(x.dtype), bias.to(x.dtype)
        y: Tensor = torch.ops.mkldnn._convolution_pointwise(
            x, weight, bias, [padding] * 2, [stride] * 2, [1, 1], 1, "relu", [], ""
        )
        ctx.save_for_backward(x, weight, y)
        ctx.stride, ctx.padding = stride, padding
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, y = ctx.saved_tensors
        grad = torch.ops.aten.threshold_backward(grads[0], y, 0)
        grad_x, grad_weight, grad_bias = torch.ops.aten.convolution_backward(
            grad,
            x,
            weight,
            [weight.shape[0]],
            [ctx.stride] * 2,
            [ctx.padding] * 2,
            [1, 1],
            False,
            [0, 0],
            1,
            # The observations need no gradient, which would cost as much as the layer itself.
            [ctx.needs_input_grad[0], True, True],
        )
        return grad_x, grad_weight.float(), grad_bias.float(), None, None


class _LinearReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        weight, bias = weight.to(x.dtype), bias.to(x.dtype)
        y = _product(x, weight, bias, "relu")
        ctx.save_for_backward(x, weight, y)
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, y = ctx.saved_tensors
        grad = torch.ops.aten.threshold_backward(grads[0], y, 0)
        grad_x = _product(grad, weight.t()) if ctx.needs_input_grad[0] else None
        return grad_x, _product(grad.t(), x.t()).float(), grad.sum(0, dtype=torch.float32)


def _product(a: Tensor, b: Tensor, bias: Tensor | None = None, then: str = "none") -> Tensor:
    """a [M, K] times the transpose of b [N, K], plus bias [N] -> [M, N]."""
    result: Tensor = torch.ops.mkldnn._linear_pointwise(a, b, bias, then, [], "")
    return result
