"""Learning: milliseconds for one update, and steps per second of whole training runs.

The limit of an update is the matrix-product peak of the machine: how long its floating-point
operations take where they are nothing but products of large square matrices, by whichever of
PyTorch's two libraries is the faster one. It is measured among the contenders, turn by turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import harness
import torch
from harness import Effort, Row

__all__ = ["training", "update"]

BATCH = 32
NUM_ACTIONS = 4
# Floating-point operations, two for each multiply-add, of the Nature network's layers on one stack:
# outputs x inputs of each.
FIRST_LAYER_FLOP = 2 * (20 * 20 * 32) * (8 * 8 * 4)
FORWARD_FLOP = (
    FIRST_LAYER_FLOP
    + 2 * (9 * 9 * 64) * (4 * 4 * 32)
    + 2 * (7 * 7 * 64) * (3 * 3 * 64)
    + 2 * 512 * 3136
    + 2 * NUM_ACTIONS * 512
)
# Three forward passes (states; next states by both networks) and one backward pass, which costs two
# more but needs no gradient of its input.
UPDATE_FLOP = BATCH * (5 * FORWARD_FLOP - FIRST_LAYER_FLOP)


def update(effort: Effort) -> Iterator[Row]:
    """Milliseconds for one double-DQN update of 32 transitions, the Nature network, 4 actions."""
    yield from ()


def training(effort: Effort) -> Iterator[Row]:
    """Steps per second of whole training runs."""
    yield from ()


def fastest_product(dtype: torch.dtype) -> tuple[str, Callable[[], float]]:
    """The faster of PyTorch's matrix products for this dtype, as a turn that counts its FLOP."""
    size = 1024
    a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    products: dict[str, Callable[[], object]] = {"torch.mm": lambda: torch.mm(a, b, out=out)}
    if hasattr(torch.ops.mkldnn, "_linear_pointwise"):  # oneDNN, which convolutions go through
        one_dnn = torch.ops.mkldnn._linear_pointwise
        products["oneDNN"] = lambda: one_dnn(a, b, None, "none", [], "")
    seconds: dict[str, float] = {}
    for name, product in products.items():
        product()
        start = time.perf_counter()
        harness.repeat(product, 20)()
        seconds[name] = time.perf_counter() - start
    name = min(seconds, key=lambda name: seconds[name])
    turn = harness.repeat(products[name], 20)
    return name, lambda: turn() * 2 * size**3
