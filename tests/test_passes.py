"""Whole networks, forwards and backwards, against autograd in float64."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fastdqn import layers
from fastdqn.config import Config
from fastdqn.inputs import Inputs
from fastdqn.networks import build_network
from fastdqn.passes import AutogradPasses, ExplicitPasses, make_passes

SHAPES = {"images": (84, 84), "vectors": (4,)}


def make_network(frame_shape: tuple[int, ...], **settings: Any) -> nn.Module:
    torch.manual_seed(0)
    return build_network(frame_shape, 6, **Config(**settings).network_options())


def stacks(frame_shape: tuple[int, ...], rows: int) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    if len(frame_shape) == 2:
        return torch.randint(256, (rows, 4, *frame_shape), dtype=torch.uint8, generator=generator)
    return torch.randn(rows, 4, *frame_shape, generator=generator)


def reference(network: nn.Module, x: Tensor, grad: Tensor) -> tuple[Tensor, list[Tensor]]:
    """Values and gradients by autograd, in float64 throughout."""
    network = copy.deepcopy(network).double()
    if x.dtype == torch.uint8:
        y = x.double() / 255
        y = network.convolutions(y).permute(0, 2, 3, 1).flatten(1)
    else:
        y = x.double().flatten(1)
    values = network.values(network.hidden(y))
    values.backward(grad.double())
    return values.detach(), [weight.grad for weight in network.parameters()]


@pytest.mark.parametrize("onednn", [True, False], ids=["onednn", "fallback"])
@pytest.mark.parametrize(
    ("shape", "settings"),
    [
        ("images", {}),
        ("images", {"first_padding": 1, "shared_last_bias": True}),
        ("vectors", {}),
        ("vectors", {"hidden_units": (), "shared_last_bias": True}),
        ("vectors", {"hidden_units": (300, 256)}),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_explicit_passes_are_autograds(
    monkeypatch: pytest.MonkeyPatch,
    shape: str,
    settings: dict[str, Any],
    dtype: torch.dtype,
    onednn: bool,
) -> None:
    if onednn and not layers._ONEDNN:
        pytest.skip("this PyTorch has no oneDNN operations")
    monkeypatch.setattr(layers, "_ONEDNN", onednn)
    network = make_network(SHAPES[shape], **settings)
    passes = ExplicitPasses(network, dtype)  # type: ignore[arg-type]
    x = stacks(SHAPES[shape], 8)
    grad = torch.randn(5, 6, generator=torch.Generator().manual_seed(2))
    values = passes.forward(passes.inputs(x[:3], x[3:]), 5)
    passes.backward(grad)
    expected, gradients = reference(network, x, torch.cat([grad, torch.zeros(3, 6)]))
    assert values.dtype == torch.float32
    assert torch.equal(passes.values(passes.inputs(x)), values)
    # Parts of the norms. float32: sums in another order. bfloat16 keeps 8 bits at every layer, and
    # ReLUs near 0 flip, which is a part of so few rows; a layer alone is held to 0.01.
    tolerance = 1e-5 if dtype == torch.float32 else 0.05
    assert float((values - expected).norm() / expected.norm()) < tolerance
    for (name, weight), other in zip(network.named_parameters(), gradients, strict=True):
        assert weight.grad is not None
        difference = float((weight.grad - other).norm() / other.norm())
        assert difference < (tolerance if dtype == torch.float32 else 0.25), (name, difference)


@pytest.mark.parametrize("shape", SHAPES)
def test_autograd_passes_give_the_same(shape: str) -> None:
    network = make_network(SHAPES[shape])
    other = copy.deepcopy(network)
    explicit, autograd = ExplicitPasses(network), AutogradPasses(other)  # type: ignore[arg-type]
    x, grad = stacks(SHAPES[shape], 8), torch.ones(5, 6)
    values = []
    for passes in (explicit, autograd):
        values.append(passes.forward(passes.inputs(x[:5], x[5:]), 5))
        passes.backward(grad)
        torch.testing.assert_close(passes.values(passes.inputs(x)), values[-1])
    torch.testing.assert_close(values[0], values[1], rtol=1e-5, atol=1e-5)
    for a, b in zip(network.parameters(), other.parameters(), strict=True):
        assert a.grad is not None
        assert b.grad is not None
        assert float((a.grad - b.grad).norm() / b.grad.norm()) < 1e-5


def test_packed_weights_change_no_value() -> None:
    network = make_network(SHAPES["images"])
    x = stacks(SHAPES["images"], 4)
    for dtype in (torch.float32, torch.bfloat16):
        plain = ExplicitPasses(network, dtype)  # type: ignore[arg-type]
        packed = ExplicitPasses(network, dtype, packed=True)  # type: ignore[arg-type]
        values = plain.values(plain.inputs(x))
        # Another kernel may sum in another order.
        torch.testing.assert_close(packed.values(packed.inputs(x)), values, rtol=1e-3, atol=1e-4)


def test_only_bytes_are_images() -> None:
    network = make_network(SHAPES["images"])
    x = stacks(SHAPES["images"], 2)
    for passes in (make_passes(network), ExplicitPasses(network)):  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"expected images of torch\.uint8, got torch\.float32"):
            passes.inputs(x, x.float())


def test_another_number_of_rows_does_not_overwrite_inputs() -> None:
    passes = ExplicitPasses(make_network(SHAPES["images"]))  # type: ignore[arg-type]
    x = stacks(SHAPES["images"], 3)
    inputs = passes.inputs(x)
    passes.inputs(x[:1] * 0)
    assert torch.equal(inputs.parts[0], x.float())


def test_rows_of_inputs() -> None:
    x = torch.arange(10).unsqueeze(1)
    inputs = Inputs((x[:4], x[4:5], x[5:]))
    for start, stop in ((0, 10), (2, 5), (4, 5), (5, 10), (3, 8), (6, 6), (10, 10)):
        rows = inputs[start:stop]
        assert len(rows) == stop - start
        assert torch.equal(torch.cat(rows.parts), x[start:stop])
    assert len(inputs[4:]) == 6
    assert len(inputs[:4]) == 4
