"""Centred RMSProp against the formula, step by step in float64 Python numbers."""

from __future__ import annotations

import copy
import math

import pytest
import torch

from fastdqn.optimizers import Adam, CenteredRMSProp, make_optimizer


def test_centered_rmsprop_by_hand() -> None:
    gradients = [0.5, -1.0, 0.25, 3.0]
    weight = torch.nn.Parameter(torch.tensor([2.0]))
    optimizer = CenteredRMSProp([weight], learning_rate=0.1, decay=0.95, epsilon=0.01)
    w, g, s = 2.0, 0.0, 0.0
    for d in gradients:
        weight.grad = torch.tensor([d])
        optimizer.step()
        g = 0.95 * g + 0.05 * d
        s = 0.95 * s + 0.05 * d * d
        w -= 0.1 * d / math.sqrt(s - g * g + 0.01)
        # float32 against float64: a few roundings of 6e-8 each.
        assert weight.item() == pytest.approx(w, rel=1e-6)
    # The first step in numbers: g = .025, s = .0125, root = sqrt(.0125 - .000625 + .01).
    assert 2 - 0.1 * 0.5 / math.sqrt(0.021875) == pytest.approx(1.6619383, abs=1e-6)


def test_epsilon_stands_inside_the_root() -> None:
    ours = torch.nn.Parameter(torch.tensor([0.0]))
    torchs = torch.nn.Parameter(torch.tensor([0.0]))
    for weight, optimizer in (
        (ours, CenteredRMSProp([ours], learning_rate=1.0, decay=0.95, epsilon=0.01)),
        (torchs, torch.optim.RMSprop([torchs], lr=1.0, alpha=0.95, eps=0.01, centered=True)),
    ):
        weight.grad = torch.tensor([1e-3])
        optimizer.step()
    # A tiny gradient: ours divides by about .1, torch's by about .01.
    assert ours.item() == pytest.approx(-0.01, rel=1e-3)
    assert torchs.item() < -0.05


def test_constant_gradients_never_make_nan() -> None:
    # s - g^2 tends to 0 and rounds below it; epsilon is far smaller than that rounding.
    weight = torch.nn.Parameter(torch.zeros(1000))
    optimizer = CenteredRMSProp([weight], learning_rate=1e-3, decay=0.95, epsilon=1e-5)
    gradient = torch.linspace(1, 1000, 1000)
    for _ in range(500):
        weight.grad = gradient
        optimizer.step()
    assert torch.isfinite(weight).all()


def test_summed_gradients_equal_mean_gradients_with_scaled_epsilon() -> None:
    """Nature's sum with epsilon .01 is DQN Zoo's mean with .01 / 32^2."""
    summed, mean = torch.nn.Parameter(torch.ones(5)), torch.nn.Parameter(torch.ones(5))
    first = CenteredRMSProp([summed], learning_rate=1e-2, decay=0.95, epsilon=0.01)
    second = CenteredRMSProp([mean], learning_rate=1e-2, decay=0.95, epsilon=0.01 / 32**2)
    generator = torch.Generator().manual_seed(0)
    for _ in range(20):
        gradient = torch.randn(5, generator=generator)
        summed.grad, mean.grad = gradient * 32, gradient
        first.step()
        second.step()
    torch.testing.assert_close(summed, mean, rtol=1e-5, atol=1e-6)


def test_the_name_chooses_the_optimizer() -> None:
    weights = [torch.nn.Parameter(torch.zeros(1))]
    values = {"learning_rate": 2.5e-4, "epsilon": 0.01, "decay": 0.95}
    adam = make_optimizer("adam", weights, **values)
    assert isinstance(adam, torch.optim.Adam)
    assert (adam.defaults["lr"], adam.defaults["eps"]) == (2.5e-4, 0.01)
    nature = make_optimizer("rmsprop_centered", weights, **values)
    assert isinstance(nature, CenteredRMSProp)
    assert nature.defaults == {"lr": 2.5e-4, "decay": 0.95, "epsilon": 0.01}


@pytest.mark.parametrize("core", [False, True], ids=["pytorch", "core"])
def test_adam_is_pytorchs(monkeypatch: pytest.MonkeyPatch, core: bool) -> None:
    if core and not Adam._uses_core:
        pytest.skip("the core has no step for this processor")
    monkeypatch.setattr(Adam, "_uses_core", core)

    def same(a: torch.Tensor, b: torch.Tensor) -> bool:
        # PyTorch rounds a tensor's last few numbers in another order than the rest, the core none.
        return torch.allclose(a, b, rtol=1e-6, atol=1e-9) if core else torch.equal(a, b)

    generator = torch.Generator().manual_seed(0)
    first = [torch.randn(shape, generator=generator) for shape in ((64, 32, 4, 4), (7,), (1,))]
    first[0] = first[0].contiguous(memory_format=torch.channels_last)
    ours, theirs = ([torch.nn.Parameter(weight.clone()) for weight in first] for _ in range(2))
    mine = Adam(ours, learning_rate=1e-2, epsilon=1e-4)
    other = torch.optim.Adam(theirs, lr=1e-2, eps=1e-4, fused=True)
    for _ in range(5):
        for a, b in zip(ours, theirs, strict=True):
            a.grad = torch.empty_like(a).normal_(generator=generator)
            b.grad = a.grad.clone()
        mine.step()
        other.step()
    for a, b in zip(ours, theirs, strict=True):
        assert same(a, b)
    # And so is its state: either goes on from the other's.
    saved = other.state_dict()["state"]
    for index, state in mine.state_dict()["state"].items():
        assert state.keys() == saved[index].keys()
        assert all(same(state[name], saved[index][name]) for name in state)
    mine.load_state_dict(copy.deepcopy(other.state_dict()))
    mine.step()
    other.step()
    assert all(same(a, b) for a, b in zip(ours, theirs, strict=True))


def test_closures_are_refused() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    for optimizer in (
        Adam([weight], learning_rate=1.0, epsilon=1.0),
        CenteredRMSProp([weight], learning_rate=1.0, decay=0.9, epsilon=1.0),
    ):
        with pytest.raises(TypeError, match="takes no closure"):
            optimizer.step(lambda: 0.0)


def test_steps_are_counted_as_pytorch_counts_them_in_copies_and_in_what_is_loaded_too() -> None:
    weights = [torch.nn.Parameter(torch.ones(n)) for n in (3, 4, 5)]
    optimizer = Adam(weights, learning_rate=0.1, epsilon=1e-8)

    def step(optimizer: Adam) -> None:
        for weight in optimizer.param_groups[0]["params"]:
            weight.grad = torch.ones_like(weight)
        optimizer.step()

    def counts(optimizer: Adam) -> list[float]:
        return [state["step"].item() for state in optimizer.state_dict()["state"].values()]

    step(optimizer)
    twin = copy.deepcopy(optimizer)
    step(twin)
    assert (counts(optimizer), counts(twin)) == ([1, 1, 1], [2, 2, 2])
    saved = copy.deepcopy(twin.state_dict())
    step(twin)
    twin.load_state_dict(saved)
    step(twin)
    assert counts(twin) == [3, 3, 3]
    for number, state in enumerate(saved["state"].values()):
        state["step"] = torch.tensor(float(number))
    twin.load_state_dict(saved)  # counts of weights that were not always moved together
    step(twin)
    assert counts(twin) == [1, 2, 3]
    assert counts(optimizer) == [1, 1, 1]


def test_a_count_of_steps_that_is_moved_or_replaced_is_counted_on() -> None:
    weights = [torch.nn.Parameter(torch.ones(n)) for n in (3, 4)]
    optimizer = Adam(weights, learning_rate=0.1, epsilon=1e-8)

    def counts_after_a_step() -> list[float]:
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        optimizer.step()
        return [state["step"].item() for state in optimizer.state.values()]

    assert counts_after_a_step() == [1, 1]
    for state in optimizer.state.values():
        state["step"].share_memory_()
    assert counts_after_a_step() == [2, 2]
    optimizer.state[weights[0]]["step"].data = torch.tensor(10.0)
    assert counts_after_a_step() == [11, 11]
    optimizer.state[weights[1]]["step"] = torch.tensor(5.0)
    assert counts_after_a_step() == [12, 6]


def test_pytorchs_adam_goes_on_from_a_state() -> None:
    weights = [torch.nn.Parameter(torch.ones(n)) for n in (3, 4)]
    ours = Adam(weights, learning_rate=0.1, epsilon=1e-8)

    def step(optimizer: torch.optim.Optimizer) -> None:
        for weight in weights:
            weight.grad = torch.ones_like(weight)
        optimizer.step()

    step(ours)
    theirs = torch.optim.Adam(weights, lr=0.1, eps=1e-8)
    theirs.load_state_dict(ours.state_dict())
    step(theirs)
    assert [state["step"].item() for state in theirs.state.values()] == [2, 2]
    assert [state["step"].item() for state in ours.state.values()] == [1, 1]
