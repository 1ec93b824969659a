"""The networks' layers as the learner computes them: forwards and backwards, without autograd.

The modules of `fastdqn.networks` hold the weights, in float32, and define what a layer computes.
Here each has a counterpart that computes it fast: in float32 or bfloat16, on copies of the weights
in the dtype and order that the kernels read best, with images in channels-last order throughout.

This is the one place that knows which library computes what. On a CPU, large products go to oneDNN:
PyTorch itself sends those of float32 to another library, which reaches half of oneDNN's speed on
processors of some makers, and computes the ReLU as a second pass. Where oneDNN's operations are
missing, and on every other device, the operations are PyTorch's own. Gradients are exact; results
differ in the last bits only.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

__all__ = ["Convolution", "Dense", "Flattening", "Layer", "Values"]

_aten, _onednn = torch.ops.aten, torch.ops.mkldnn


def _has_onednn_operations() -> bool:
    names = ["_convolution_pointwise", "_linear_pointwise"]
    names += ["_reorder_convolution_weight", "_reorder_linear_weight"]
    available: bool = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    return available and all(hasattr(_onednn, name) for name in names)


_ONEDNN = _has_onednn_operations()

# A call of oneDNN costs ten microseconds more than PyTorch's own, which small layers never earn.
_LARGE_DENSE_WEIGHTS = 2**16


class Layer(Protocol):
    """One step of a network."""

    def refresh(self) -> None:
        """Take over the module's weights, which have changed."""

    def forward(self, x: Tensor) -> Tensor:
        """The output for an input."""

    def backward(self, grad: Tensor, x: Tensor, y: Tensor, *, input_too: bool) -> Tensor | None:
        """From the output's gradient set those of the weights, and return that of the input.

        `x` and `y` are an input and its output. Without `input_too` the result is None.
        """


class Convolution:
    """A convolution and its ReLU: [B, C, H, W] -> [B, F, H', W'].

    It sees its inputs times `input_scale`. `packed` weights are kept in oneDNN's own order, which
    is quicker to read but slow to write: for weights that seldom change.
    """

    def __init__(
        self,
        module: nn.Conv2d,
        dtype: torch.dtype,
        *,
        input_scale: float = 1.0,
        packed: bool = False,
    ) -> None:
        assert module.bias is not None
        self._master, self._master_bias = module.weight, module.bias
        self._scale = input_scale
        self._stride, self._padding = list(module.stride), [int(side) for side in module.padding]
        self._onednn = _ONEDNN and module.weight.device.type == "cpu"
        self._packs = packed and self._onednn
        self._weight = _place_for(self._master, dtype, input_scale)
        self._bias = _place_for(self._master_bias, dtype)
        self.refresh()

    def refresh(self) -> None:
        _take_over(self._weight, self._master, self._scale)
        _take_over(self._bias, self._master_bias)
        self._packed: Tensor | None = None  # until an input tells its shape

    def forward(self, x: Tensor) -> Tensor:
        if not self._onednn:
            y = torch.conv2d(x, self._weight, self._bias, self._stride, self._padding)
            return y.relu_()
        weight = self._weight
        if self._packs:
            if self._packed is None:
                self._packed = _onednn._reorder_convolution_weight(
                    weight, self._padding, self._stride, [1, 1], 1, list(x.shape)
                )
            weight = self._packed
        return _onednn._convolution_pointwise(  # type: ignore[no-any-return]
            x, weight, self._bias, self._padding, self._stride, [1, 1], 1, "relu", [], ""
        )

    def backward(self, grad: Tensor, x: Tensor, y: Tensor, *, input_too: bool) -> Tensor | None:
        grad_x, weight, bias = _aten.convolution_backward(
            _aten.threshold_backward(grad, y, 0),
            x,
            self._weight,
            [len(self._bias)],
            self._stride,
            self._padding,
            [1, 1],
            False,
            [0, 0],
            1,
            [input_too, True, True],
        )
        _set_grad(self._master, weight if self._scale == 1 else weight * self._scale)
        _set_grad(self._master_bias, bias)
        return grad_x  # type: ignore[no-any-return]


class Flattening:
    """Channels-last images as vectors, which copies nothing: [B, C, H, W] -> [B, H W C]."""

    def refresh(self) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        return x.permute(0, 2, 3, 1).flatten(1)

    def backward(self, grad: Tensor, x: Tensor, y: Tensor, *, input_too: bool) -> Tensor:
        rows, channels, height, width = x.shape
        return grad.view(rows, height, width, channels).permute(0, 3, 1, 2)


class Dense:
    """A dense layer and its ReLU: [B, inputs] -> [B, outputs]. `packed` as in `Convolution`."""

    def __init__(self, module: nn.Linear, dtype: torch.dtype, *, packed: bool = False) -> None:
        self._master, self._master_bias = module.weight, module.bias
        on_cpu = module.weight.device.type == "cpu"
        self._onednn = _ONEDNN and on_cpu and module.weight.numel() >= _LARGE_DENSE_WEIGHTS
        self._packs = packed and self._onednn
        self._weight = _place_for(self._master, dtype)
        self._bias = _place_for(self._master_bias, dtype)
        self.refresh()

    def refresh(self) -> None:
        _take_over(self._weight, self._master)
        _take_over(self._bias, self._master_bias)
        self._packed: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        if not self._onednn:
            return torch.addmm(self._bias, x, self._weight.t()).relu_()
        weight = self._weight
        if self._packs:
            if self._packed is None:
                self._packed = _onednn._reorder_linear_weight(weight, len(x))
            weight = self._packed
        return _onednn._linear_pointwise(  # type: ignore[no-any-return]
            x, weight, self._bias, "relu", [], ""
        )

    def backward(self, grad: Tensor, x: Tensor, y: Tensor, *, input_too: bool) -> Tensor | None:
        grad = _aten.threshold_backward(grad, y, 0)
        _set_grad(self._master, self._product(grad.t(), x))
        _set_grad(self._master_bias, grad.sum(0, dtype=torch.float32))
        return self._product(grad, self._weight) if input_too else None

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        """a [M, K] times b [K, N] -> [M, N]."""
        if not self._onednn:
            return a @ b
        return _onednn._linear_pointwise(a, b.t(), None, "none", [], "")  # type: ignore[no-any-return]


class Values:
    """The last layer, always in float32: [B, inputs] -> [B, A] float32."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter) -> None:
        self._weight, self._bias = weight, bias  # [A, inputs], [A] or one for all actions

    def refresh(self) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        return torch.addmm(self._bias, x.float(), self._weight.t())

    def backward(self, grad: Tensor, x: Tensor, y: Tensor, *, input_too: bool) -> Tensor | None:
        _set_grad(self._weight, grad.t() @ x.float())
        _set_grad(self._bias, grad.sum(0).sum_to_size(self._bias.shape))
        return (grad @ self._weight).to(x.dtype) if input_too else None


def _place_for(master: Tensor, dtype: torch.dtype, scale: float = 1.0) -> Tensor:
    """What is computed with: the weights themselves where they are used as they are, else memory
    for a copy, the same for good, since CUDA graphs read it."""
    master = master.detach()
    return master if dtype == master.dtype and scale == 1 else torch.empty_like(master, dtype=dtype)


def _take_over(place: Tensor, master: Tensor, scale: float = 1.0) -> None:
    master = master.detach()
    if place.data_ptr() != master.data_ptr():
        torch.mul(master, scale, out=place)


def _set_grad(weight: Tensor, grad: Tensor) -> None:
    """As autograd leaves it: in the weight's dtype and memory order, which optimizers go by."""
    if grad.dtype != weight.dtype or grad.stride() != weight.stride():
        grad = torch.empty_like(weight).copy_(grad)
    weight.grad = grad
