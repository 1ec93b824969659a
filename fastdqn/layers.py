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


class Weights:
    """A layer's weight and bias in the dtype computed in, beside the module's own in float32.

    In float32 they are the module's own, but for a weight with a `scale`.
    """

    def __init__(self, masters: list[Tensor], dtype: torch.dtype, scale: float = 1.0) -> None:
        self._masters = masters
        self._scale = scale
        self.copies = [
            master.detach() if dtype == master.dtype else torch.empty_like(master, dtype=dtype)
            for master in masters
        ]
        if scale != 1:
            self.copies[0] = torch.empty_like(masters[0], dtype=dtype, requires_grad=False)
        self.refresh()

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over the module's weights, which have changed."""
        for copy, master, scale in zip(self.copies, self._masters, (self._scale, 1), strict=True):
            if scale != 1:
                torch.mul(master, scale, out=copy)
            elif copy.dtype != master.dtype:
                copy.copy_(master)

    def set_grads(self, *grads: Tensor) -> None:
        """Leave gradients by the copies as autograd leaves those by the module's own weights: in
        their dtype and memory order, which the fused optimizers go by."""
        for master, grad, scale in zip(self._masters, grads, (self._scale, 1), strict=True):
            if grad.dtype == master.dtype and grad.stride() == master.stride():
                master.grad = grad.mul_(scale) if scale != 1 else grad
                continue
            if master.grad is None:
                master.grad = torch.empty_like(master)
            master.grad.copy_(grad)
            if scale != 1:
                master.grad.mul_(scale)


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
        self._weights = Weights([module.weight, module.bias], dtype, scale=input_scale)
        self._stride, self._padding = list(module.stride), [int(side) for side in module.padding]
        self._onednn = _ONEDNN and module.weight.device.type == "cpu"
        self._packs = packed and self._onednn
        self.refresh()

    def refresh(self) -> None:
        self._weights.refresh()
        self._packed: Tensor | None = None  # until an input tells its shape

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self._weights.copies
        if not self._onednn:
            return torch.conv2d(x, weight, bias, self._stride, self._padding).relu_()
        if self._packs:
            if self._packed is None:
                self._packed = _onednn._reorder_convolution_weight(
                    weight, self._padding, self._stride, [1, 1], 1, list(x.shape)
                )
            weight = self._packed
        return _onednn._convolution_pointwise(  # type: ignore[no-any-return]
            x, weight, bias, self._padding, self._stride, [1, 1], 1, "relu", [], ""
        )

    def backward(self, grad: Tensor, x: Tensor, y: Tensor, *, input_too: bool) -> Tensor | None:
        weight, bias = self._weights.copies
        grad_x, *grads = _aten.convolution_backward(
            _aten.threshold_backward(grad, y, 0),
            x,
            weight,
            [len(bias)],
            self._stride,
            self._padding,
            [1, 1],
            False,
            [0, 0],
            1,
            [input_too, True, True],
        )
        self._weights.set_grads(*grads)
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
        self._weights = Weights([module.weight, module.bias], dtype)
        on_cpu = module.weight.device.type == "cpu"
        self._onednn = _ONEDNN and on_cpu and module.weight.numel() >= _LARGE_DENSE_WEIGHTS
        self._packs = packed and self._onednn
        self.refresh()

    def refresh(self) -> None:
        self._weights.refresh()
        self._packed: Tensor | None = None

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self._weights.copies
        if not self._onednn:
            return torch.addmm(bias, x, weight.t()).relu_()
        if self._packs:
            if self._packed is None:
                self._packed = _onednn._reorder_linear_weight(weight, len(x))
            weight = self._packed
        return _onednn._linear_pointwise(  # type: ignore[no-any-return]
            x, weight, bias, "relu", [], ""
        )

    def backward(self, grad: Tensor, x: Tensor, y: Tensor, *, input_too: bool) -> Tensor | None:
        grad = _aten.threshold_backward(grad, y, 0)
        self._weights.set_grads(self._product(grad.t(), x), grad.sum(0))
        return self._product(grad, self._weights.copies[0]) if input_too else None

    def _product(self, a: Tensor, b: Tensor) -> Tensor:
        """a [M, K] times b [K, N] -> [M, N]."""
        if not self._onednn:
            return a @ b
        return _onednn._linear_pointwise(a, b.t(), None, "none", [], "")  # type: ignore[no-any-return]


class Values:
    """The last layer, always in float32: [B, inputs] -> [B, A] float32."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter) -> None:
        # [A, inputs], [A] or one for all actions
        self._weights = Weights([weight, bias], torch.float32)

    def refresh(self) -> None:
        pass

    def forward(self, x: Tensor) -> Tensor:
        weight, bias = self._weights.copies
        return torch.addmm(bias, x.float(), weight.t())

    def backward(self, grad: Tensor, x: Tensor, y: Tensor, *, input_too: bool) -> Tensor | None:
        weight, bias = self._weights.copies
        self._weights.set_grads(grad.t() @ x.float(), grad.sum(0).sum_to_size(bias.shape))
        return (grad @ weight).to(x.dtype) if input_too else None
