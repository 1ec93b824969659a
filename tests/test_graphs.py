"""When work is recorded and when it is done, with a recorder that stands for a GPU's."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch
from graph_support import CpuRecorder
from torch import Tensor

from fastdqn.graphs import Replayed, replayed
from fastdqn.learner import Learner, MetricMeans
from fastdqn.native import NativePasses
from fastdqn.networks import build_network
from fastdqn.optimizers import Adam, make_optimizer
from fastdqn.q_learning import QLearningLoss


class FakeRecorder:
    """Runs nothing while it records, as a GPU does; replays what it recorded."""

    def __init__(self, fails: bool = False) -> None:
        self.fails = fails
        self.warm_ups = self.recordings = self.replays = 0

    def warm_up(self, work: Callable[[], object]) -> None:
        self.warm_ups += 1
        work()

    def record(self, work: Callable[[], object]) -> Callable[[], object]:
        self.recordings += 1
        if self.fails:
            raise RuntimeError("operation not permitted when stream is capturing\nmore lines")

        def replay() -> None:
            self.replays += 1
            work()

        return replay


def test_every_call_does_the_work_exactly_once() -> None:
    recorder = FakeRecorder()
    total = torch.zeros(())
    slots = [torch.zeros(()), torch.zeros(())]
    update = Replayed(lambda x: total.add_(x), recorder)
    for number in range(1, 11):
        slots[number % 2].fill_(number)
        update(slots[number % 2])
        assert total.item() == number * (number + 1) / 2
    assert (recorder.warm_ups, recorder.recordings, recorder.replays) == (3, 2, 7)


def test_what_cannot_be_recorded_is_done_as_it_is_and_one_line_says_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    recorder = FakeRecorder(fails=True)
    total = torch.zeros(())
    update = Replayed(lambda x: total.add_(x), recorder)
    with caplog.at_level(logging.WARNING):
        for number in range(1, 11):
            update(torch.full((), float(number)))
            assert total.item() == number * (number + 1) / 2
    assert recorder.recordings == 1
    (record,) = caplog.records
    assert record.getMessage() == (
        "CUDA graphs are off, which costs speed only: operation not permitted when stream is "
        "capturing"
    )


def test_a_functions_own_mistakes_surface() -> None:
    def wrong(x: Tensor) -> None:
        raise ValueError("shape")

    with pytest.raises(ValueError, match="shape"):
        Replayed(wrong, FakeRecorder())(torch.zeros(()))
    with pytest.raises(ValueError, match="shape"):
        Replayed(wrong, FakeRecorder(), warm_ups=0)(torch.zeros(()))


def test_recorded_tensors_stay_where_they_are() -> None:
    """Their addresses name the recording: no other tensor may ever come to lie there."""
    update = Replayed(lambda x: None, FakeRecorder(), warm_ups=0)
    addresses = set()
    for _ in range(20):
        x = torch.zeros(1000)
        addresses.add(x.data_ptr())
        update(x)
        del x
    assert len(addresses) == 20


def test_on_a_cpu_the_function_itself_is_called() -> None:
    assert replayed(print, torch.device("cpu")) is print


def atari_learner(optimizer: str, dtype: torch.dtype) -> tuple[Learner, MetricMeans]:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        network = build_network(
            (44, 44),
            4,
            stack=4,
            first_padding=0,
            shared_last_bias=False,
            initial_weights="fan_in_uniform",
            hidden_units=(),
        )
    learner = Learner(
        network,
        make_optimizer(
            optimizer,  # type: ignore[arg-type]
            network.parameters(),
            learning_rate=1e-3,
            epsilon=1e-4,
            decay=0.95,
        ),
        num_actions=4,
        double=True,
        loss="huber",
        loss_reduction="mean",
        max_grad_norm=10.0,
        target_tau=0.1,
        dtype=dtype,
    )
    return learner, MetricMeans(torch.device("cpu"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("optimizer", ["adam", "rmsprop_centered"])
def test_an_update_that_is_replayed_is_the_update(
    monkeypatch: pytest.MonkeyPatch, optimizer: str, dtype: torch.dtype
) -> None:
    """Nothing that an update reads or writes may lie elsewhere the next time."""
    # What a GPU computes with: the core's passes and steps are no operations of PyTorch.
    monkeypatch.setattr(NativePasses, "supports", lambda *_: False)
    monkeypatch.setattr(Adam, "_uses_core", False)
    monkeypatch.setattr(QLearningLoss, "_uses_core", False)
    learner, means = atari_learner(optimizer, dtype)
    twin, twin_means = atari_learner(optimizer, dtype)
    recorder = CpuRecorder()
    update = Replayed(lambda *batch: means.add(learner.update(*batch)), recorder)
    generator = torch.Generator().manual_seed(1)
    slots = [empty_batch(), empty_batch()]
    stacks = torch.zeros(2, 4, 44, 44, dtype=torch.uint8)
    best = torch.zeros(2, dtype=torch.int64)
    choose = Replayed(lambda x: best.copy_(learner.values(x).argmax(1)), CpuRecorder())
    for number in range(12):
        batch = slots[number % 2]
        fill(batch, generator)
        update(*batch)
        twin_means.add(twin.update(*batch))
        stacks.random_(0, 256, generator=generator)
        with torch.no_grad():
            choose(stacks)
            expected = twin.values(stacks).argmax(1)
        assert torch.equal(best, expected)
        if number == 7:
            learner.copy_target()
            twin.copy_target()
    assert (recorder.warm_ups, recorder.recordings, recorder.replays) == (3, 2, 9)
    for name in ("online", "target"):
        pairs = zip(
            getattr(learner, name).parameters(), getattr(twin, name).parameters(), strict=True
        )
        assert all(torch.equal(one, other) for one, other in pairs), name
    assert means.read() == twin_means.read()


def empty_batch() -> tuple[Tensor, ...]:
    return (
        torch.empty(8, 4, 44, 44, dtype=torch.uint8).contiguous(memory_format=torch.channels_last),
        torch.empty(8, dtype=torch.int64),
        torch.empty(8),
        torch.empty(8),
        torch.empty(8, 4, 44, 44, dtype=torch.uint8).contiguous(memory_format=torch.channels_last),
    )


def fill(batch: tuple[Tensor, ...], generator: torch.Generator) -> None:
    states, actions, rewards, discounts, next_states = batch
    for images in (states, next_states):
        images.random_(0, 256, generator=generator)
    actions.random_(0, 4, generator=generator)
    rewards.normal_(generator=generator)
    discounts.fill_(0.99)


def test_the_recorder_of_these_tests_finds_what_a_gpu_would() -> None:
    """A tensor that is replaced rather than written, and a value that is read."""
    weight = torch.ones(())
    copy = weight * 2

    def replaces(x: Tensor) -> None:
        nonlocal copy
        x.add_(copy)
        weight.add_(1)
        copy = weight * 2

    x = torch.zeros(())
    update = Replayed(replaces, CpuRecorder(), warm_ups=0)
    for _ in range(3):
        update(x)
    assert x.item() == 6  # not 2 + 4 + 6
    with pytest.raises(RuntimeError, match="capturing"):
        CpuRecorder().record(lambda: weight.item())
