"""Exploration by the step, and what is due for any number of environments."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from fastdqn.schedules import Due, LearningSchedule, LinearSchedule


def test_linear_schedule_by_hand() -> None:
    schedule = LinearSchedule(1.0, 0.1, 9, begin_step=10)
    assert [schedule(step) for step in (0, 10, 11, 18, 19, 1_000)] == pytest.approx(
        [1.0, 1.0, 0.9, 0.2, 0.1, 0.1], abs=1e-12
    )
    assert schedule(19) == 0.1


def test_a_line_of_no_length_is_a_jump() -> None:
    schedule = LinearSchedule(1.0, 0.1, 0, begin_step=5)
    assert (schedule(4), schedule(5)) == (1.0, 0.1)


def test_what_each_step_calls_for_by_hand() -> None:
    schedule = LearningSchedule(starts=8, train_period=4, target_period=6)
    due = {step: list(schedule.due(step - 1, step)) for step in range(1, 25)}
    update, copy = Due.UPDATE, Due.TARGET_COPY
    expected = {8: [update], 12: [update, copy], 16: [update], 18: [copy], 20: [update]}
    expected[24] = [update, copy]
    assert {step: events for step, events in due.items() if events} == expected


@pytest.mark.parametrize("train_period", [1, 3, 4, 10])
@pytest.mark.parametrize("starts", [0, 1, 50, 53])
def test_the_same_events_for_1_4_and_7_environments(train_period: int, starts: int) -> None:
    schedule = LearningSchedule(starts, train_period, target_period=25)
    total = 28 * 10  # whole vector steps for all three
    runs = []
    for num_envs in (1, 4, 7):
        steps = range(0, total + 1, num_envs)
        runs.append([due for pair in pairwise(steps) for due in schedule.due(*pair)])
    assert runs[0] == runs[1] == runs[2]
    first = max(starts, 1)
    assert Counter(runs[0]) == {
        Due.UPDATE: sum(step % train_period == 0 for step in range(first, total + 1)),
        Due.TARGET_COPY: sum(step % 25 == 0 for step in range(first, total + 1)),
    }


def test_a_soft_target_is_never_copied() -> None:
    schedule = LearningSchedule(starts=0, train_period=1, target_period=None)
    assert set(schedule.due(0, 100)) == {Due.UPDATE}
