"""Each layer, forwards and backwards, against autograd in float64."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastdqn import layers
from fastdqn.layers import Convolution, Dense, Flattening, Layer, Values

# What a value or gradient may be off by, as a part of its tensor's norm: sums of up to a few
# thousand products in another order, of numbers that keep 24 bits or 8.
TOLERANCE = {torch.float32: 1e-6, torch.bfloat16: 1e-2}

KERNELS = ["onednn", "fallback"]


@pytest.fixture(params=KERNELS, autouse=True)
def kernels(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "onednn" and not layers._ONEDNN:
        pytest.skip("this PyTorch has no oneDNN operations")
    monkeypatch.setattr(layers, "_ONEDNN", request.param == "onednn")


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def assert_near(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    expected = expected.detach()
    difference = float((actual.double() - expected).norm() / expected.norm())
    assert difference < TOLERANCE[dtype], difference


def check(
    layer: Layer, module: nn.Module, reference: nn.Module, x: Tensor, dtype: torch.dtype
) -> None:
    """Value, and gradients of the weights and the input, those of `reference` in float64."""
    x = x.to(dtype)
    reference, x64 = reference.double(), x.detach().double().requires_grad_()
    expected = reference(x64)
    with torch.no_grad():
        y = layer.forward(x)
        # ReLUs that round to the other side of 0 have another gradient: none here.
        grad = randn(*y.shape, seed=9) * ((expected.abs() > 0.05) | (y == 0))
        grad = grad.to(y.dtype)
        if y.dim() == 4:
            grad = grad.contiguous(memory_format=torch.channels_last)
        grad_x = layer.backward(grad, x, y, input_too=True)
        assert layer.backward(grad, x, y, input_too=False) is None
    expected.backward(grad.double())
    assert_near(y, expected, dtype)
    assert grad_x is not None
    assert x64.grad is not None
    assert (grad_x.dtype, grad_x.shape) == (dtype, x.shape)
    assert_near(grad_x, x64.grad, dtype)
    for weight, other in zip(module.parameters(), reference.parameters(), strict=True):
        assert weight.grad is not None
        assert other.grad is not None
        # As the fused optimizers need it.
        assert (weight.grad.dtype, weight.grad.stride()) == (torch.float32, weight.stride())
        assert_near(weight.grad, other.grad, dtype)


def rounded(module: nn.Module, dtype: torch.dtype) -> nn.Module:
    """The same layer with the weights that are computed with."""
    other = copy.deepcopy(module)
    with torch.no_grad():
        for weight in other.parameters():
            weight.copy_(weight.to(dtype))
    return other


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(
    ("channels", "filters", "kernel", "stride", "padding"),
    [(4, 32, 8, 4, 0), (4, 32, 8, 4, 1), (32, 64, 4, 2, 0), (64, 64, 3, 1, 0)],
)
def test_convolution(
    channels: int,
    filters: int,
    kernel: int,
    stride: int,
    padding: int,
    dtype: torch.dtype,
    packed: bool,
) -> None:
    torch.manual_seed(0)
    module = nn.Conv2d(channels, filters, kernel, stride, padding)
    module.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    x = randn(3, channels, 20, 20, seed=1).contiguous(memory_format=torch.channels_last)
    layer = Convolution(module, dtype, packed=packed)
    check(layer, module, nn.Sequential(rounded(module, dtype), nn.ReLU()), x, dtype)


def test_a_convolution_scales_its_inputs() -> None:
    torch.manual_seed(0)
    module = nn.Conv2d(4, 32, 8, 4).to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = rounded(module, torch.float32)

        def forward(self, x: Tensor) -> Tensor:
            return F.relu(self.inner(x / 255))

    x = torch.randint(256, (3, 4, 20, 20)).float().contiguous(memory_format=torch.channels_last)
    layer = Convolution(module, torch.float32, input_scale=1 / 255)
    layer.backward(layer.forward(x), x, layer.forward(x), input_too=False)
    reference = Scaled().double()
    y = reference(x.double())
    y.backward(layer.forward(x).double())
    assert_near(layer.forward(x), y, torch.float32)
    for weight, other in zip(module.parameters(), reference.parameters(), strict=True):
        assert weight.grad is not None
        assert other.grad is not None
        assert_near(weight.grad, other.grad, torch.float32)


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
@pytest.mark.parametrize(("inputs", "outputs"), [(3136, 512), (5, 16)])
def test_dense(inputs: int, outputs: int, dtype: torch.dtype, packed: bool) -> None:
    torch.manual_seed(0)
    module = nn.Linear(inputs, outputs)
    layer = Dense(module, dtype, packed=packed)
    reference = nn.Sequential(rounded(module, dtype), nn.ReLU())
    check(layer, module, reference, randn(32, inputs, seed=1), dtype)


@pytest.mark.parametrize("shared", [False, True])
def test_values(shared: bool) -> None:
    class Head(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.weight = nn.Parameter(torch.randn(6, 512))
            self.bias = nn.Parameter(torch.randn(1 if shared else 6))

        def forward(self, x: Tensor) -> Tensor:
            return F.linear(x, self.weight, self.bias.expand(6))

    head = Head()
    check(Values(head.weight, head.bias), head, Head(), randn(32, 512, seed=1), torch.float32)


def test_flattening_is_a_view_in_the_order_row_column_channel() -> None:
    x = randn(2, 3, 4, 5, seed=0).contiguous(memory_format=torch.channels_last)
    y = Flattening().forward(x)
    assert y.data_ptr() == x.data_ptr()
    assert y[1, (2 * 5 + 3) * 3 + 1] == x[1, 1, 2, 3]
    back = Flattening().backward(y, x, y, input_too=True)
    assert torch.equal(back, x)
    assert back.stride() == x.stride()


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("dtype", TOLERANCE, ids=str)
def test_changed_weights_are_taken_over_by_a_refresh(dtype: torch.dtype, packed: bool) -> None:
    torch.manual_seed(0)
    convolution = nn.Conv2d(4, 32, 8, 4).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    dense = nn.Linear(3136, 512)
    image = randn(2, 4, 20, 20, seed=1).to(dtype).contiguous(memory_format=torch.channels_last)
    vector = randn(2, 3136, seed=1).to(dtype)
    for layer, module, x in (
        (Convolution(convolution, dtype, input_scale=0.5, packed=packed), convolution, image),
        (Dense(dense, dtype, packed=packed), dense, vector),
    ):
        before = layer.forward(x)
        with torch.no_grad():
            for weight in module.parameters():
                weight.mul_(-2)
        layer.refresh()
        after = layer.forward(x)
        # ReLU of the negated sums: what was 0 is not, and the other way around. Exact, for a
        # factor of 2 rounds nothing.
        assert (before * after == 0).all()
        assert after.any()
