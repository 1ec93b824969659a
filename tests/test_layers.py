"""The fused layers against PyTorch's own, values and gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fastdqn import layers


def tensor(*shape: int, seed: int, grad: bool = True) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).requires_grad_(grad)


def gradients(y: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    weights = tensor(*y.shape, seed=99, grad=False)
    return list(torch.autograd.grad((y * weights).sum(), inputs))


def assert_close(actual: list[Tensor], expected: list[Tensor]) -> None:
    for a, b in zip(actual, expected, strict=True):
        # float32 sums of up to a few thousand products in another order.
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-4 * float(b.detach().abs().max()))


@pytest.mark.parametrize("onednn", [True, False], ids=["onednn", "fallback"])
@pytest.mark.parametrize(
    ("channels", "filters", "kernel", "stride", "padding"),
    [(4, 32, 8, 4, 0), (4, 32, 8, 4, 1), (32, 64, 4, 2, 0), (64, 64, 3, 1, 0)],
)
def test_convolution(
    monkeypatch: pytest.MonkeyPatch,
    onednn: bool,
    channels: int,
    filters: int,
    kernel: int,
    stride: int,
    padding: int,
) -> None:
    if onednn and not layers._ONEDNN:
        pytest.skip("this PyTorch has no oneDNN operations")
    monkeypatch.setattr(layers, "_ONEDNN", onednn)
    x = tensor(3, channels, 20, 20, seed=0).to(memory_format=torch.channels_last)
    weight, bias = tensor(filters, channels, kernel, kernel, seed=1), tensor(filters, seed=2)
    inputs = [x, weight, bias]
    actual = layers.conv_relu(x, weight, bias, stride, padding)
    expected = F.relu(F.conv2d(x, weight, bias, stride, padding))
    assert_close([actual], [expected])
    assert_close(gradients(actual, inputs), gradients(expected, inputs))


@pytest.mark.parametrize("onednn", [True, False], ids=["onednn", "fallback"])
def test_dense(monkeypatch: pytest.MonkeyPatch, onednn: bool) -> None:
    if onednn and not layers._ONEDNN:
        pytest.skip("this PyTorch has no oneDNN operations")
    monkeypatch.setattr(layers, "_ONEDNN", onednn)
    x, weight, bias = tensor(32, 3136, seed=0), tensor(512, 3136, seed=1), tensor(512, seed=2)
    inputs = [x, weight, bias]
    actual, expected = layers.linear_relu(x, weight, bias), F.relu(F.linear(x, weight, bias))
    assert_close([actual], [expected])
    assert_close(gradients(actual, inputs), gradients(expected, inputs))
    assert_close([layers.linear(x, weight, bias)], [F.linear(x, weight, bias)])


def test_bfloat16_inputs_give_float32_gradients() -> None:
    x = tensor(8, 4, 36, 36, seed=0, grad=False).to(torch.bfloat16)
    weight, bias = tensor(32, 4, 8, 8, seed=1), tensor(32, seed=2)
    y = layers.conv_relu(x, weight, bias, 4, 0)
    assert y.dtype == torch.bfloat16
    dense, dense_bias = tensor(16, 32 * 8 * 8, seed=3), tensor(16, seed=4)
    z = layers.linear_relu(y.flatten(1), dense, dense_bias)
    inputs = [weight, bias, dense, dense_bias]
    actual = gradients(z.float(), inputs)
    assert all(grad.dtype == torch.float32 for grad in actual)
    # The same numbers, computed in float32: bfloat16 keeps 8 bits, and ReLUs near 0 may flip.
    y = F.relu(F.conv2d(x.float(), weight, bias, 4))
    expected = gradients(F.relu(F.linear(y.flatten(1), dense, dense_bias)), inputs)
    for a, b in zip(actual, expected, strict=True):
        assert float((a - b).norm() / b.norm()) < 0.1
