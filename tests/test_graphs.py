"""When work is recorded and when it is done, with a recorder that stands for a GPU's."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from fastdqn.graphs import Replayed, replayed


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
