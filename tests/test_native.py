"""The Nature network's passes in the C++ core, against autograd in float64 and PyTorch's passes."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fastdqn._core import AdamStep, NatureNetwork, NatureUpdate, ThreadPool
from fastdqn.config import Config
from fastdqn.learner import Learner
from fastdqn.native import NativePasses
from fastdqn.networks import NatureCNN, build_network
from fastdqn.optimizers import Adam
from fastdqn.passes import ExplicitPasses, Passes, make_passes

DTYPES = [
    pytest.param(
        dtype,
        id=str(dtype),
        marks=pytest.mark.skipif(
            not NatureNetwork.is_available(bfloat16=dtype == torch.bfloat16),
            reason="not on this processor",
        ),
    )
    for dtype in (torch.float32, torch.bfloat16)
]

# What a value or gradient may be off by, as a part of its tensor's norm: sums of up to some ten
# thousand products in another order, of numbers that keep 24 bits or 8.
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 1e-2}
# A ReLU that rounds to the other side of 0 has another gradient, which one in thousands does in
# bfloat16. By minimal filtering other numbers are rounded than in the reference, and some more do;
# how exact a layer is, tests/cpp/test_tiled_convolution.cpp sees.
FLIPS, FLIPS_IN_TILES = 4e-2, 0.2


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def make_network(frame_shape: tuple[int, int] = (84, 84), actions: int = 6, **settings: Any) -> Any:
    torch.manual_seed(actions)
    return build_network(frame_shape, actions, **Config(**settings).network_options())


def stacks(rows: int, network: Any, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    channels = network.convolutions[0].in_channels
    shape = (rows, *network.frame_shape, channels)
    x = torch.randint(256, shape, dtype=torch.uint8, generator=generator)
    return x.permute(0, 3, 1, 2)


class Rounded(torch.autograd.Function):
    """Numbers forwards and gradients backwards as `dtype` keeps them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = dtype
        return x.to(dtype).to(x.dtype)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return grad.to(ctx.dtype).to(grad.dtype), None


class RoundedGradient(Rounded):
    @staticmethod
    def forward(ctx: Any, x: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.dtype = dtype
        return x


def reference(
    network: NatureCNN, x: Tensor, grad: Tensor, dtype: torch.dtype
) -> tuple[Tensor, list[Tensor]]:
    """Values and gradients by autograd in float64, of numbers rounded where they are said to be."""
    other = copy.deepcopy(network).double()

    def weight(module: nn.Module, scale: float = 1.0) -> Tensor:
        exact: Tensor = module.weight * scale  # type: ignore[operator, assignment]
        return exact + (exact.detach().to(dtype).double() - exact.detach())

    y = x.double()
    scale = network.input_scale
    for module in other.convolutions:
        assert isinstance(module, nn.Conv2d)
        y = F.conv2d(y, weight(module, scale), module.bias, module.stride, module.padding)
        y = Rounded.apply(F.relu(y), dtype)  # type: ignore[no-untyped-call]
        scale = 1.0
    y = F.linear(y.permute(0, 2, 3, 1).flatten(1), weight(other.hidden), other.hidden.bias)
    y = F.relu(RoundedGradient.apply(y, dtype))  # type: ignore[no-untyped-call]
    values = other.values(y)
    values[: len(grad)].backward(grad.double())
    return values.detach(), [weight.grad for weight in other.parameters()]  # type: ignore[misc]


def difference(actual: Tensor, expected: Tensor) -> float:
    return float((actual.double() - expected).norm() / expected.norm())


FEW_ROWS = 8


def has_amx() -> bool:
    """Whether the processor multiplies tiles of bfloat16: minimal filtering is needless there."""
    return "amx_bf16" in Path("/proc/cpuinfo").read_text()


def computed_in_tiles(network: Any, passes: NativePasses) -> bool:
    """Whether FEW_ROWS rows or more go by minimal filtering: where 16 numbers lie side by side."""
    in_tiles = passes.few_rows != 0
    assert passes.few_rows == (FEW_ROWS if in_tiles else 0)
    if not has_amx():  # with it, float32 alone
        assert in_tiles == (network.convolutions[0].in_channels % 4 == 0)
    return in_tiles


def run(passes: Passes, network: Any, x: Tensor, grad: Tensor) -> tuple[Tensor, list[Tensor]]:
    for weight in network.parameters():
        weight.grad = None
    cut = len(grad)
    values = passes.forward(passes.inputs(x[:cut], x[cut:]), cut)
    passes.backward(grad)
    return values, [weight.grad.clone() for weight in network.parameters()]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "learned", "actions", "frame_shape", "settings"),
    [
        (1, 1, 4, (84, 84), {}),
        (3, 3, 18, (84, 84), {"first_padding": 1, "shared_last_bias": True}),
        (8, 5, 6, (84, 84), {"stack": 2}),
        (33, 33, 9, (52, 36), {}),
        (64, 32, 4, (84, 84), {}),
        (5, 2, 7, (40, 61), {"stack": 6, "first_padding": 2}),
    ],
)
def test_passes_are_autograds(
    dtype: torch.dtype,
    rows: int,
    learned: int,
    actions: int,
    frame_shape: tuple[int, int],
    settings: dict[str, Any],
) -> None:
    network = make_network(frame_shape, actions, **settings)
    passes = make_passes(network, dtype)
    assert isinstance(passes, NativePasses)
    x = stacks(rows, network)
    grad = torch.randn(learned, actions, generator=torch.Generator().manual_seed(2))
    values, gradients = run(passes, network, x, grad)
    expected, expected_gradients = reference(network, x, grad, dtype)
    assert (values.dtype, values.shape) == (torch.float32, (rows, actions))
    assert difference(values, expected) < TOLERANCE[dtype]
    names = [name for name, _ in network.named_parameters()]
    for name, actual, wanted in zip(names, gradients, expected_gradients, strict=True):
        # Few rows of stacks that are never computed in tiles have none.
        may_flip = rows > 8 or network.convolutions[0].in_channels % 4 == 0
        flips = FLIPS if dtype == torch.bfloat16 and may_flip else 0.0
        if dtype == torch.bfloat16 and computed_in_tiles(network, passes):
            flips = FLIPS_IN_TILES
        assert difference(actual, wanted) < TOLERANCE[dtype] + flips, name
    # As the fused optimizers need it.
    for weight in network.parameters():
        assert (weight.grad.dtype, weight.grad.stride()) == (torch.float32, weight.stride())
    # One row alone, or all, with or without something to learn: the same bits, but where few rows
    # are computed in another way.
    for some in (x, x[-1:]):
        others = passes.values(passes.inputs(some))
        if computed_in_tiles(network, passes) and len(some) < FEW_ROWS:
            assert difference(others, expected[-len(some) :]) < TOLERANCE[dtype]
        else:
            assert torch.equal(others, values[-len(some) :])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("settings", [{}, {"first_padding": 1}, {"stack": 8}, {"stack": 2}])
def test_a_rows_bits_depend_on_no_other_row(dtype: torch.dtype, settings: dict[str, Any]) -> None:
    network = make_network((84, 76), **settings)
    passes = NativePasses(network, dtype)
    x = stacks(41, network)
    values = passes.values(passes.inputs(x))
    for begin, end in ((0, FEW_ROWS), (3, 12), (20, 41)):
        assert torch.equal(passes.values(passes.inputs(x[begin:end])), values[begin:end])
    few = passes.values(passes.inputs(x[: FEW_ROWS - 1]))
    for row in range(FEW_ROWS - 1):
        assert torch.equal(passes.values(passes.inputs(x[row : row + 1])), few[row : row + 1])
    in_tiles = computed_in_tiles(network, passes)
    assert torch.equal(few, values[: FEW_ROWS - 1]) != in_tiles
    if dtype == torch.bfloat16 and has_amx():
        assert not in_tiles


@pytest.mark.parametrize("dtype", DTYPES)
def test_results_are_explicit_passes(dtype: torch.dtype) -> None:
    network = make_network()
    x, grad = stacks(12, network), torch.ones(8, 6)
    values, gradients = run(NativePasses(network, dtype), network, x, grad)
    for packed in (False, True):
        explicit = ExplicitPasses(network, dtype, packed=packed)
        others, other_gradients = run(explicit, network, x, grad)
        # In bfloat16 these round the hidden layer's outputs and every bias too. In either, ReLUs
        # near 0 flip.
        close, flips = (1e-6, 1e-2) if dtype == torch.float32 else (0.02, 0.2)
        assert difference(values, others.double()) < close
        for one, other in zip(gradients, other_gradients, strict=True):
            assert difference(one, other.double()) < flips


@pytest.mark.parametrize("dtype", DTYPES)
def test_not_a_bit_depends_on_the_number_of_threads(dtype: torch.dtype) -> None:
    network = make_network()
    x, grad = stacks(13, network), torch.randn(7, 6)
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        values, gradients = run(NativePasses(network, dtype), network, x, grad)
        results.append([values, *gradients])
    for others in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], others, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("frame_shape", [(84, 84), (36, 36)])
def test_few_rows_by_many_threads_are_the_same_bits(
    dtype: torch.dtype, frame_shape: tuple[int, int]
) -> None:
    network = make_network(frame_shape)
    x = stacks(7, network)
    torch.set_num_threads(1)
    passes = NativePasses(network, dtype)
    expected = passes.values(passes.inputs(x))
    for threads in (2, 3, 7):
        torch.set_num_threads(threads)
        for rows in (1, 2, 5):
            assert torch.equal(passes.values(passes.inputs(x[:rows])), expected[:rows])


def learner_of(dtype: torch.dtype, **settings: Any) -> Learner:
    network = make_network()
    optimizer = Adam(network.parameters(), learning_rate=1e-3, epsilon=1e-6)
    options: dict[str, Any] = {"double": True, "loss": "huber", "loss_reduction": "mean"}
    options |= {"num_actions": 6, "max_grad_norm": None, "target_tau": None, "dtype": dtype}
    return Learner(network, optimizer, **{**options, **settings})


def state_of(learner: Learner, x: Tensor) -> list[Tensor]:
    """Weights, moments, and values of x by the weights that are computed with."""
    moments = [
        tensor
        for weight in learner.online.parameters()
        for tensor in learner.optimizer.state[weight].values()
    ]
    return [*learner.online.state_dict().values(), *moments, learner.values(x)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("rows", "settings"),
    [
        (32, {}),
        (7, {"double": False}),
        (1, {"loss": "squared", "loss_reduction": "sum"}),
        (12, {"target_tau": 0.1}),
    ],
)
def test_an_update_in_one_is_its_parts_to_the_last_bit(
    dtype: torch.dtype, rows: int, settings: dict[str, Any]
) -> None:
    at_once, in_parts = learner_of(dtype, **settings), learner_of(dtype, **settings)
    assert at_once.overlaps
    in_parts.overlaps = False
    generator = torch.Generator().manual_seed(rows)
    x = stacks(2 * rows, make_network())
    for _ in range(4):
        batch = (
            x[:rows],
            torch.randint(6, (rows,), generator=generator),
            torch.randn(rows, generator=generator),
            torch.full((rows,), 0.99),
            x[rows:],
        )
        assert at_once.update(*batch) == in_parts.update(*batch)
        x = x.flip(0)
    pairs = zip(state_of(at_once, x), state_of(in_parts, x), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("dtype", DTYPES)
def test_not_a_bit_of_an_update_depends_on_the_number_of_threads(dtype: torch.dtype) -> None:
    results = []
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        learner = learner_of(dtype)
        x = stacks(20, learner.online)
        for _ in range(2):
            actions = torch.arange(10) % 6
            learner.update(x[:10], actions, torch.ones(10), torch.ones(10), x[10:])
        results.append(state_of(learner, x))
    for others in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], others, strict=True))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_an_update_beside_its_caller_is_the_same_to_the_last_bit(
    dtype: torch.dtype, threads: int
) -> None:
    """However far it is when it is finished; two of them share the threads without harm. Nothing
    changes before, whoever looks meanwhile."""
    torch.set_num_threads(threads)
    at_once, beside, other = (learner_of(dtype) for _ in range(3))
    x = stacks(64, at_once.online)
    policy = beside.core_policy(x[:3])
    assert policy is not None
    for round_ in range(6):
        batch = (x[:32], torch.arange(32) % 6, torch.ones(32), torch.ones(32), x[32:])
        before, few, actions = beside.values(x), beside.values(x[:3]), policy().copy()
        started = beside.begin_update(batch)
        others = other.begin_update(batch)
        time.sleep(round_ * 1e-3)
        assert torch.equal(beside.values(x), before)
        assert torch.equal(beside.values(x[:3]), few)
        assert actions.tolist() == policy().tolist() == few.argmax(1).tolist()
        assert started.finish() == at_once.update(*batch) == others.finish()
        x = x.flip(0)
        policy = beside.core_policy(x[:3])
        assert policy is not None
    for learner in (beside, other):
        pairs = zip(state_of(at_once, x), state_of(learner, x), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs)


def test_updates_that_get_in_each_others_way_are_refused() -> None:
    learner = learner_of(torch.float32)
    x = stacks(80, learner.online)

    def batch(rows: int) -> tuple[Tensor, ...]:
        numbers = torch.zeros(rows, dtype=torch.int64), torch.ones(rows), torch.ones(rows)
        return (x[:rows], *numbers, x[rows : 2 * rows])

    started = learner.begin_update(batch(10))
    assert started.native is not None
    with pytest.raises(RuntimeError, match="begun before"):
        started.native.begin()
    learner.update(*batch(40))
    before = state_of(learner, x)
    with pytest.raises(RuntimeError, match="another forward pass"):
        started.finish()
    assert all(torch.equal(a, b) for a, b in zip(before, state_of(learner, x), strict=True))
    with pytest.raises(RuntimeError, match="begun before"):
        started.native.begin()


def test_an_update_whose_optimizer_does_not_suit_any_more_is_made_in_parts() -> None:
    learner, other = learner_of(torch.float32), learner_of(torch.float32)
    x = stacks(20, learner.online)
    batch = (x[:10], torch.zeros(10, dtype=torch.int64), torch.ones(10), torch.ones(10), x[10:])
    for each in (learner, other):
        each.update(*batch)
    started = learner.begin_update(batch)
    assert isinstance(learner.optimizer, Adam)
    learner.optimizer._uses_core = False
    assert started.finish() == other.update(*batch)


def test_values_of_no_stacks_are_none() -> None:
    passes = NativePasses(make_network())
    assert passes.values(passes.inputs(stacks(0, make_network()))).shape == (0, 6)


def test_an_action_of_no_number_is_the_first_as_in_pytorch() -> None:
    learner = learner_of(torch.float32)
    x = stacks(2, learner.online)
    with torch.no_grad():
        learner.online.values.bias[3] = float("nan")
    learner.refresh()
    policy = learner.core_policy(x)
    assert policy is not None
    assert policy().tolist() == learner.values(x).argmax(1).tolist() == [3, 3]


@pytest.mark.parametrize("layout", [torch.channels_last, torch.contiguous_format])
def test_a_batchs_tensors_may_be_filled_anew(layout: torch.memory_format) -> None:
    learner, other = learner_of(torch.float32), learner_of(torch.float32)
    other.load_state(learner.save_state())
    x = stacks(40, learner.online)
    actions, ones = torch.zeros(10, dtype=torch.int64), torch.ones(10)
    states, next_states = (x[:10].clone(memory_format=layout) for _ in range(2))
    for first in (0, 10, 20):
        states.copy_(x[first : first + 10])
        next_states.copy_(x[first + 10 : first + 20])
        anew = (states.clone(), actions.clone(), ones.clone(), ones.clone(), next_states.clone())
        assert learner.update(states, actions, ones, ones, next_states) == other.update(*anew)


def test_a_batchs_tensors_may_be_moved_and_changed() -> None:
    learner, other = learner_of(torch.float32), learner_of(torch.float32)
    other.load_state(learner.save_state())
    x = stacks(40, learner.online)
    actions, rewards, discounts = torch.zeros(20).long(), torch.rand(20), torch.ones(20)
    batch = (x[:20].clone(), actions, rewards, discounts, x[20:].clone())

    def update() -> None:
        anew = [tensor.detach().clone() for tensor in batch]
        assert learner.update(*batch) == other.update(*anew)

    update()
    rewards.share_memory_()
    update()
    rewards.set_(torch.rand(20))
    batch[0].data = x[5:25].clone()
    update()
    for tensor in batch:
        tensor.data = tensor[:7].clone()
    update()
    rewards.data = rewards.double()
    with pytest.raises(TypeError, match="rewards is of dtype float64"):
        learner.update(*batch)


def test_an_update_that_is_never_finished_is_none() -> None:
    learner = learner_of(torch.float32)
    x = stacks(20, learner.online)
    before = state_of(learner, x)
    batch = (x[:10], torch.zeros(10, dtype=torch.int64), torch.ones(10), torch.ones(10), x[10:])
    started = learner.begin_update(batch)
    del started
    assert all(torch.equal(a, b) for a, b in zip(before, state_of(learner, x), strict=True))
    learner.update(*batch)


def test_an_update_that_is_refused_leaves_all_as_it_was() -> None:
    learner = learner_of(torch.float32)
    x = stacks(4, learner.online)
    good = (x[:2], torch.zeros(2, dtype=torch.int64), torch.ones(2), torch.ones(2), x[2:])
    learner.update(*good)
    before = [tensor.clone() for tensor in state_of(learner, x)]
    with pytest.raises(IndexError, match="action 6 of row 0; expected 0 to 5"):
        learner.update(good[0], torch.full((2,), 6), *good[2:])
    with pytest.raises(ValueError, match=r"rewards has shape \(2, 1\)"):
        learner.update(*good[:2], torch.ones(2, 1), *good[3:])
    assert all(torch.equal(a, b) for a, b in zip(before, state_of(learner, x), strict=True))
    learner.update(*good)
    assert learner.optimizer.state[learner.online.hidden.weight]["step"] == 2  # type: ignore[index, union-attr]


def test_two_learners_share_nothing_of_the_state_that_they_go_on_from() -> None:
    learner = learner_of(torch.float32)
    x = stacks(4, learner.online)
    batch = (x[:2], torch.zeros(2, dtype=torch.int64), torch.ones(2), torch.ones(2), x[2:])
    learner.update(*batch)
    state = learner.save_state()
    others = [learner_of(torch.float32) for _ in range(2)]
    for other in others:
        other.load_state(state)
    expected = [tensor.clone() for tensor in state_of(others[1], x)]
    others[0].update(*batch)
    assert all(torch.equal(a, b) for a, b in zip(expected, state_of(others[1], x), strict=True))


def test_where_all_gradients_must_be_seen_first_there_is_no_update_in_one() -> None:
    assert not learner_of(torch.float32, max_grad_norm=10.0).overlaps
    assert not learner_of(torch.float32, num_actions=5).overlaps
    network = make_network()
    optimizers = [
        torch.optim.SGD(network.parameters(), lr=0.1),
        Adam([*network.parameters()][1:], learning_rate=0.1, epsilon=1e-6),
    ]
    for optimizer in optimizers:
        learner = Learner(
            network,
            optimizer,
            num_actions=6,
            double=True,
            loss="huber",
            loss_reduction="mean",
            max_grad_norm=None,
            target_tau=None,
        )
        assert not learner.overlaps


@pytest.mark.parametrize("dtype", DTYPES)
def test_changed_weights_are_taken_over_by_a_refresh(dtype: torch.dtype) -> None:
    network, other = make_network(seed=0), make_network(actions=7)
    x, grad = stacks(4, network), torch.randn(3, 6)
    passes = NativePasses(network, dtype)
    run(passes, network, x, grad)
    with torch.no_grad():
        for weight, source in zip(network.parameters(), other.parameters(), strict=True):
            weight.copy_(source[: len(weight)] * 1.5)
    passes.refresh()
    values, gradients = run(passes, network, x, grad)
    expected, expected_gradients = run(NativePasses(network, dtype), network, x, grad)
    assert torch.equal(values, expected)
    assert all(torch.equal(a, b) for a, b in zip(gradients, expected_gradients, strict=True))


def test_images_in_another_memory_order_are_the_same_images() -> None:
    network = make_network()
    passes = NativePasses(network)
    x = stacks(3, network)
    values = passes.values(passes.inputs(x))
    assert torch.equal(passes.values(passes.inputs(x.contiguous())), values)


def test_stacks_stay_alive_until_backward() -> None:
    network = make_network()
    passes = NativePasses(network)
    grad = torch.ones(3, 6)
    expected = run(passes, network, stacks(3, network), grad)[1]
    passes.forward(passes.inputs(stacks(3, network)), 3)
    _ = [torch.full((3, 84, 84, 4), 255, dtype=torch.uint8) for _ in range(8)]
    passes.backward(grad)
    for weight, gradient in zip(network.parameters(), expected, strict=True):
        assert torch.equal(weight.grad, gradient)


def test_what_is_not_covered_falls_back() -> None:
    assert isinstance(make_passes(make_network(stack=3)), ExplicitPasses)
    assert isinstance(make_passes(make_network().to(torch.float64)), ExplicitPasses)
    meta = copy.deepcopy(make_network()).to("meta")
    assert not NativePasses.supports(meta, torch.float32)
    assert not NativePasses.supports(make_network(), torch.float16)


def test_wrong_arguments_are_refused() -> None:
    network = make_network()
    arrays = [
        (weight.permute(0, 2, 3, 1) if weight.dim() == 4 else weight).detach().numpy()
        for weight in network.parameters()
    ]
    options: Any = {"height": 84, "width": 84, "first_padding": 0, "bfloat16": False}
    core = NatureNetwork(arrays, **options)
    pool = ThreadPool(1)
    core.refresh(pool)
    frames, out = np.zeros((2, 84, 84, 4), np.uint8), np.zeros((2, 6), np.float32)
    with pytest.raises(RuntimeError, match="no rows are kept"):
        core.backward_into(pool, np.zeros((0, 6), np.float32), arrays)
    core.forward_into(pool, [frames], 2, out)
    batch = [frames, np.zeros(2, np.int64), *np.zeros((2, 2), np.float32), frames]
    factors = {"learning_rate": 0.1, "beta1": 0.9, "beta2": 0.999, "epsilon": 1e-6, "step": 1}
    rule = {"double": True, "huber": True, "mean": True}
    step = AdamStep(*[arrays] * 4)

    def update(batch: Any, adam: AdamStep = step) -> None:
        NatureUpdate(pool, core, core, batch, **rule).finish(arrays, adam, **factors)

    done = NatureUpdate(pool, core, core, batch, **rule)
    done.finish(arrays, step, **factors)
    with pytest.raises(RuntimeError, match="finished before"):
        done.finish(arrays, step, **factors)
    with pytest.raises(IndexError, match="action 6 of row 1; expected 0 to 5"):
        update([frames, np.array([5, 6]), *batch[2:]])
    for call, message in (
        (
            lambda: core.values_into(pool, [frames[:, 1:]], out),
            r"stacks has shape \(2, 83, 84, 4\)",
        ),
        (
            lambda: core.values_into(pool, [frames], out[:1]),
            r"out has shape \(1, 6\); expected \(2",
        ),
        (lambda: core.values_into(pool, [frames], out.T), r"out has shape \(6, 2\)"),
        (lambda: core.forward_into(pool, [frames], 3, out), "learned is 3; expected 0 to 2"),
        (lambda: core.backward_into(pool, out[:1], arrays), r"grad has shape \(1, 6\)"),
        (lambda: update(batch[:4]), "batch is not of five arrays"),
        (lambda: update([frames[:1], *batch[1:]]), "states has 1 rows and next_states 2"),
        (lambda: update([*batch[:2], batch[2][:1], *batch[3:]]), r"rewards has shape \(1,\)"),
        (lambda: update(batch, adam=AdamStep(*[arrays[1:]] * 4)), "not one of the network's"),
        (lambda: update(batch, adam=AdamStep(*[arrays[::-1]] * 4)), "not one of the network's"),
        (lambda: core.backward_into(pool, out, arrays[1:]), "gradients has length 9"),
        (lambda: core.backward_into(pool, out, arrays[::-1]), r"convolutions\.0\.weight has shape"),
        (lambda: NatureNetwork(arrays[1:], **options), "weights has length 9"),
        (lambda: NatureNetwork(arrays, **{**options, "width": 80}), r"hidden\.weight has shape"),
        (lambda: NatureNetwork(arrays, **{**options, "height": 30}), "too small"),
        (lambda: ThreadPool(0), "threads is 0; expected 1 to 1024"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
    with pytest.raises(TypeError, match="stacks is of dtype float32; expected uint8"):
        core.values_into(pool, [frames.astype(np.float32)], out)  # type: ignore[list-item]
    frozen = out.copy()
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="out is read-only"):
        core.values_into(pool, [frames], frozen)
