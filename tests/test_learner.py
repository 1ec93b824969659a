"""The update by hand-computed numbers: targets, errors, gradients, target networks."""

from __future__ import annotations

import copy
import math
from typing import Any, Literal

import pytest
import torch
from torch import Tensor, nn

from fastdqn.config import Config
from fastdqn.errors import UserError
from fastdqn.learner import Learner, MetricMeans
from fastdqn.networks import MLP, NatureCNN, build_network
from fastdqn.q_learning import Metrics, QLearningLoss, q_learning_errors


class Table(nn.Module):
    """Values that are the weights themselves: state i (a one-element stack) has row i."""

    def __init__(self, rows: list[list[float]]) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.tensor(rows))

    def forward(self, states: Tensor) -> Tensor:
        return self.rows[states.flatten()]


def make_network(frame_shape: tuple[int, ...], num_actions: int, **settings: Any) -> nn.Module:
    return build_network(frame_shape, num_actions, **Config(**settings).network_options())


def make_learner(
    online: list[list[float]], target: list[list[float]] | None = None, **settings: Any
) -> Learner:
    table = Table(online)
    # Plain descent at rate 1, so that the step taken is the gradient.
    learner = Learner(
        table,
        torch.optim.SGD(table.parameters(), lr=1.0),
        num_actions=2,
        **{
            "double": True,
            "loss": "huber",
            "loss_reduction": "mean",
            "max_grad_norm": None,
            "target_tau": None,
            **settings,
        },
    )
    if target is not None:
        with torch.no_grad():
            learner.target.rows.copy_(torch.tensor(target))
    return learner


def batch(*rows: tuple[int, int, float, float, int]) -> list[Tensor]:
    """Rows of (state, action, reward, discount, next state)."""
    columns = [torch.tensor(column) for column in zip(*rows, strict=True)]
    return [columns[0].unsqueeze(1), *columns[1:4], columns[4].unsqueeze(1)]


ONLINE = [[1.0, 2.0], [5.0, 3.0]]
TARGET = [[0.5, 0.25], [10.0, 20.0]]


def test_double_target_selects_online_at_the_next_state_and_values_by_the_target() -> None:
    # Next state 1: online prefers action 0 (5 > 3), whose target value is 10.
    error, taken = q_learning_errors(
        torch.tensor(ONLINE)[[0]],
        torch.tensor([1]),
        torch.tensor([0.5]),
        torch.tensor([0.9]),
        torch.tensor(TARGET)[[1]],
        torch.tensor(ONLINE)[[1]],
    )
    assert error.item() == pytest.approx(0.5 + 0.9 * 10 - 2)
    assert taken.item() == 2


@pytest.mark.parametrize(
    ("double", "target"),
    [(True, 0.5 + 0.9 * 10), (False, 0.5 + 0.9 * 20)],  # the target's maximum is action 1's 20
)
def test_an_update_descends_the_squared_error(double: bool, target: float) -> None:
    learner = make_learner(ONLINE, TARGET, double=double, loss="squared")
    metrics = learner.update(*batch((0, 1, 0.5, 0.9, 1)))
    error = target - 2
    assert float(metrics.loss) == pytest.approx(error**2)
    assert float(metrics.mean_q) == 2
    # Only the taken action moves: by 2 error, of which none flows through the target.
    expected = torch.tensor([[1.0, 2 + 2 * error], [5.0, 3.0]])
    torch.testing.assert_close(learner.online.rows.detach(), expected)


def test_a_zero_discount_does_not_bootstrap() -> None:
    learner = make_learner(ONLINE, TARGET, loss="squared")
    metrics = learner.update(*batch((0, 0, 3.0, 0.0, 1)))
    assert float(metrics.loss) == pytest.approx((3 - 1) ** 2)


@pytest.mark.parametrize(
    ("error", "gradient"),
    [(0.25, 0.25), (-0.25, -0.25), (1.0, 1.0), (4.0, 1.0), (-400.0, -1.0)],
)
def test_huber_gradient_is_the_error_inside_one_and_its_sign_outside(
    error: float, gradient: float
) -> None:
    learner = make_learner([[0.0, 0.0]])
    learner.update(*batch((0, 0, error, 0.0, 0)))
    assert learner.online.rows[0, 0].item() == pytest.approx(gradient)


def test_huber_loss_by_hand() -> None:
    learner = make_learner([[0.0, 0.0]])
    rows = [(0, 0, 0.5, 0.0, 0), (0, 1, -3.0, 0.0, 0)]
    assert float(learner.update(*batch(*rows)).loss) == pytest.approx((0.125 + 2.5) / 2)


@pytest.mark.parametrize(("reduction", "scale"), [("mean", 0.25), ("sum", 1.0)])
def test_reduction_over_the_batch(reduction: str, scale: float) -> None:
    learner = make_learner([[0.0, 0.0]], loss_reduction=reduction)
    learner.update(*batch(*[(0, 0, 0.5, 0.0, 0)] * 4))
    assert learner.online.rows[0, 0].item() == pytest.approx(scale * 4 * 0.5)


def test_gradient_norm_is_bounded() -> None:
    learner = make_learner([[0.0, 0.0]], loss="squared", max_grad_norm=0.5)
    learner.update(*batch((0, 0, 100.0, 0.0, 0)))
    assert learner.online.rows[0, 0].item() == pytest.approx(0.5, rel=1e-5)


def test_a_batch_of_many_by_hand() -> None:
    learner = make_learner(ONLINE, TARGET, loss="squared", loss_reduction="sum")
    rows = [(0, 0, 1.0, 0.5, 1), (1, 1, -1.0, 0.5, 0), (1, 1, 2.0, 0.0, 0)]
    # Targets: 1 + .5 * 10 = 6; online at state 0 prefers 1, so -1 + .5 * .25 = -.875; 2.
    errors = [6 - 1, -0.875 - 3, 2 - 3]
    metrics = learner.update(*batch(*rows))
    assert float(metrics.loss) == pytest.approx(sum(error**2 for error in errors))
    expected = torch.tensor([[1 + 2 * 5.0, 2.0], [5.0, 3 + 2 * (-3.875 - 1)]])
    torch.testing.assert_close(learner.online.rows.detach(), expected)


def test_the_target_follows_by_copies_only_when_asked() -> None:
    learner = make_learner(ONLINE)
    learner.update(*batch((0, 1, 9.0, 0.0, 1)))
    assert learner.target.rows.tolist() == ONLINE
    learner.copy_target()
    assert learner.target.rows.tolist() == learner.online.rows.tolist() != ONLINE


def test_the_target_follows_softly_after_each_update() -> None:
    learner = make_learner([[0.0, 0.0]], target_tau=0.1)
    learner.update(*batch((0, 0, 1.0, 0.0, 0)))  # online: 1
    assert learner.target.rows[0, 0].item() == pytest.approx(0.1)
    learner.update(*batch((0, 0, 1.0, 0.0, 0)))  # online stays 1
    assert learner.target.rows[0, 0].item() == pytest.approx(0.19)


@pytest.mark.parametrize(
    "wrong",
    ["q_tm1", "a_tm1", "r_t", "discount_t", "q_t_value", "q_t_selector"],
)
def test_shapes_that_would_broadcast_are_refused(wrong: str) -> None:
    tensors = {
        "q_tm1": torch.zeros(4, 3),
        "a_tm1": torch.zeros(4, dtype=torch.int64),
        "r_t": torch.zeros(4),
        "discount_t": torch.zeros(4),
        "q_t_value": torch.zeros(4, 3),
        "q_t_selector": torch.zeros(4, 3),
    }
    q_learning_errors(**tensors)
    tensors[wrong] = tensors[wrong][..., :1] if wrong[0] == "q" else tensors[wrong].unsqueeze(1)
    with pytest.raises(ValueError, match="expected shape"):
        q_learning_errors(**tensors)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("kind", ["huber", "squared"])
def test_the_cores_loss_is_pytorchs(
    kind: Literal["huber", "squared"],
    reduction: Literal["mean", "sum"],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    generator = torch.Generator().manual_seed(0)
    for rows, actions in ((1, 1), (5, 2), (32, 18)):
        values = [torch.randn(rows, actions, generator=generator) * 2 for _ in range(3)]
        values[2][0] = 0.5  # the first of the largest
        values[2][-1, -1] = math.nan  # larger than all others, as for PyTorch
        taken = torch.randint(actions, (rows,), generator=generator)
        rewards, discounts = torch.randn(rows, generator=generator), torch.full((rows,), 0.9)
        values[0][0, taken[0]] = rewards[0] + 0.9 * values[1][0, 0] + 1  # at the bend
        loss = QLearningLoss(kind, reduction)
        arguments = (values[0], taken, rewards, discounts, *values[1:])
        monkeypatch.setattr(QLearningLoss, "_uses_core", True)
        core, core_grad = loss(*arguments)
        monkeypatch.setattr(QLearningLoss, "_uses_core", False)
        plain, plain_grad = loss(*arguments)
        for one, other in zip(core, plain, strict=True):
            assert float(one) == pytest.approx(float(other), rel=1e-5, abs=1e-6, nan_ok=True)
        torch.testing.assert_close(core_grad, plain_grad, rtol=1e-6, atol=1e-7, equal_nan=True)


def test_the_cores_loss_refuses_what_pytorchs_does() -> None:
    loss = QLearningLoss("huber", "mean")
    good = [torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64), torch.zeros(4), torch.zeros(4)]
    good += [torch.zeros(4, 3), torch.zeros(4, 3)]
    loss(*good)
    for place, tensor in enumerate(good):
        wrong = tensor[..., :1].contiguous() if tensor.dim() == 2 else tensor.unsqueeze(1)
        with pytest.raises(ValueError, match="expected"):
            loss(*good[:place], wrong, *good[place + 1 :])
    for action in (-1, 3):
        with pytest.raises(IndexError, match=f"action {action} of row 0; expected 0 to 2"):
            loss(good[0], torch.full((4,), action), *good[2:])


def test_a_wrong_head_is_refused() -> None:
    learner = make_learner([[0.0], [0.0]])
    with pytest.raises(ValueError, match="head gives 1 values for 2 actions"):
        learner.update(*batch((0, 0, 0.0, 0.0, 1)))


def test_metric_means() -> None:
    means = MetricMeans(torch.device("cpu"))
    assert str(means.read()) == "(nan, nan)"
    for loss, value in ((1.0, 4.0), (2.0, 8.0)):
        means.add(Metrics(torch.tensor(loss), torch.tensor(value)))
    assert means.read() == (1.5, 6.0)
    means.add(Metrics(torch.tensor(1.0), torch.tensor(4.0)))
    means.add(Metrics(2.0, 8.0))
    other = MetricMeans(torch.device("cpu"))
    other.load_state(means.save_state())
    for each in (means, other):
        assert each.read() == (1.5, 6.0)
    assert str(means.read()) == "(nan, nan)"


def test_nature_network_is_the_papers() -> None:
    network = make_network((84, 84), 4)
    assert isinstance(network, NatureCNN)
    # 32 8x8x4, 64 4x4x32, 64 3x3x64, 3136 -> 512 -> 4, each with biases.
    counts = [8_192 + 32, 32_768 + 64, 36_864 + 64, 1_605_632 + 512, 2_048 + 4]
    assert sum(weight.numel() for weight in network.parameters()) == sum(counts)
    padded = make_network((84, 84), 4, first_padding=1, shared_last_bias=True)
    # 86 pixels still make 20 places of the first convolution; one bias in place of four.
    assert sum(weight.numel() for weight in padded.parameters()) == sum(counts) - 3


def test_nature_network_scales_bytes_and_ignores_memory_order() -> None:
    torch.manual_seed(0)
    network = make_network((84, 84), 6)
    planar = torch.randint(0, 256, (3, 4, 84, 84), dtype=torch.uint8)
    with pytest.raises(TypeError, match=r"expected images of torch\.uint8, got torch\.float32"):
        network(planar.float())
    before = planar.clone()
    with torch.no_grad():
        values = network(planar)
        channels_last = network(planar.contiguous(memory_format=torch.channels_last))
        # Written out with torch's own functions.
        x = planar.float() / 255
        for layer, stride in zip(network.convolutions, (4, 2, 1), strict=True):
            x = torch.relu(torch.conv2d(x, layer.weight, layer.bias, stride))
        x = x.permute(0, 2, 3, 1).reshape(3, -1)
        x = torch.relu(x @ network.hidden.weight.T + network.hidden.bias)
        expected = x @ network.values.weight.T + network.values.bias
    assert values.shape == (3, 6)
    assert torch.equal(planar, before)
    # The same sums in another order.
    torch.testing.assert_close(values, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(channels_last, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("frame_shape", [(84, 84), (4,)])
def test_initial_weights(frame_shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    fan_in = make_network(frame_shape, 4)
    for layer in [*fan_in.modules()]:
        if isinstance(layer, (nn.Conv2d, nn.Linear)):
            bound = layer.weight[0].numel() ** -0.5
            for weights in (layer.weight, layer.bias):
                assert weights.abs().max() <= bound
                assert weights.abs().max() > 0.8 * bound
    xavier = make_network(frame_shape, 4, initial_weights="xavier_uniform")
    for name, weight in xavier.named_parameters():
        if weight.dim() == 1:
            assert not weight.any(), name
        else:
            place = weight[0, 0].numel()
            bound = (6 / ((weight.shape[0] + weight.shape[1]) * place)) ** 0.5
            assert 0.9 * bound < weight.abs().max() <= bound, name


def test_a_shared_bias_moves_all_actions() -> None:
    network = MLP(2, 3, (), shared_last_bias=True)
    with torch.no_grad():
        before = network(torch.ones(1, 1, 2))
        network.values.bias += 1
        torch.testing.assert_close(network(torch.ones(1, 1, 2)), before + 1)


def test_shapes_without_a_network_are_refused() -> None:
    with pytest.raises(UserError, match=r"\(84, 84, 3\): expected grey-scale images"):
        make_network((84, 84, 3), 4)
    with pytest.raises(UserError, match=r"35 by 36 pixels are too small.*36 by 36 is the least"):
        make_network((35, 36), 4)
    make_network((36, 36), 4)


def images(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)

    def stacks() -> Tensor:
        return torch.randint(256, (count, 4, 84, 84), dtype=torch.uint8, generator=generator)

    return [
        stacks(),
        torch.randint(6, (count,), generator=generator),
        torch.randn(count, generator=generator),
        torch.full((count,), 0.99),
        stacks(),
    ]


def nature_learner(**settings: Any) -> Learner:
    torch.manual_seed(0)
    network = make_network((84, 84), 6)
    optimizer = torch.optim.SGD(network.parameters(), lr=1.0)
    options = {"double": True, "loss": "huber", "loss_reduction": "mean", "max_grad_norm": None}
    options |= {"num_actions": 6, "target_tau": None}
    return Learner(network, optimizer, **{**options, **settings})


@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_an_update_is_what_plain_pytorch_makes_it(dtype: torch.dtype, double: bool) -> None:
    learner = nature_learner(dtype=dtype, double=double)
    with torch.no_grad():
        for weight in learner.target.parameters():
            weight.mul_(1.5)
    learner.refresh()
    states, actions, rewards, discounts, next_states = data = images(8)
    online = copy.deepcopy(learner.online)
    with torch.no_grad():
        next_values = learner.target(next_states)
        best = (online(next_states) if double else next_values).argmax(1, keepdim=True)
        target = rewards + discounts * next_values.gather(1, best).squeeze(1)
    taken = online(states).gather(1, actions.unsqueeze(1)).squeeze(1)
    loss = nn.functional.smooth_l1_loss(taken, target)
    loss.backward()
    before = [weight.detach().clone() for weight in online.parameters()]
    metrics = learner.update(*data)

    # float32: sums in another order. bfloat16 keeps 8 bits at each of four layers.
    value, gradient = (1e-4, 1e-4) if dtype == torch.float32 else (0.02, 0.2)
    assert float(metrics.loss) == pytest.approx(loss.item(), rel=value)
    # Values of both signs: their mean is exact as they are, not as it is itself.
    margin = value * taken.abs().mean().item()
    assert float(metrics.mean_q) == pytest.approx(taken.mean().item(), abs=margin)
    pairs = zip(before, learner.online.parameters(), online.parameters(), strict=True)
    for old, new, plain in pairs:
        assert new.dtype == torch.float32
        assert plain.grad is not None
        # What plain descent moved it by, which rounds as the weight does.
        moved = old - new.detach()
        assert float((moved - plain.grad).norm() / plain.grad.norm()) < gradient + 1e-4


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("tau", [None, 1.0])
def test_values_and_targets_follow_the_weights(dtype: torch.dtype, tau: float | None) -> None:
    learner, data = nature_learner(dtype=dtype, target_tau=tau), images(8)
    before = learner.values(data[0])
    learner.update(*data)
    after = learner.values(data[0])
    assert not torch.equal(before, after)
    if tau is None:
        learner.copy_target()
    fresh = nature_learner(dtype=dtype)
    with torch.no_grad():
        for mine, theirs in zip(
            fresh.online.parameters(), learner.online.parameters(), strict=True
        ):
            mine.copy_(theirs)
    fresh.refresh()
    fresh.copy_target()
    assert torch.equal(fresh.values(data[0]), after)
    assert float(learner.update(*data).loss) == float(fresh.update(*data).loss)
