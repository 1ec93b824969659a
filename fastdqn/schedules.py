"""When things happen: exploration by the step, and the ratio of acting to learning.

All of it counts agent steps, so that nothing changes its meaning with the number of environments.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, auto

__all__ = ["Due", "LearningSchedule", "LinearSchedule"]


@dataclass(frozen=True)
class LinearSchedule:
    """A value that goes in a straight line from `start` to `end` over `decay_steps` steps."""

    start: float
    end: float
    decay_steps: int
    begin_step: int = 0
    """The value is `start` up to this step."""

    def __call__(self, step: int) -> float:
        """The value at `step`."""
        if step >= self.begin_step + self.decay_steps:
            return self.end
        if step <= self.begin_step:
            return self.start
        progress = (step - self.begin_step) / self.decay_steps
        return self.start + progress * (self.end - self.start)


class Due(Enum):
    """What a step calls for."""

    UPDATE = auto()
    TARGET_COPY = auto()


@dataclass(frozen=True)
class LearningSchedule:
    """The ratio of learning to acting, in one formula.

    Once `starts` steps have been taken, each step whose number is a multiple of `train_period`
    calls for an update, and each whose number is a multiple of `target_period` for a copy of the
    online into the target network, after the update of the same step. Steps are numbered from 1.
    """

    starts: int
    train_period: int
    target_period: int | None
    """None: the target network follows softly, so there are no copies."""

    def due(self, before: int, after: int) -> Iterator[Due]:
        """What the steps `before + 1` to `after` call for, in order.

        A vector step takes several steps at once; what it makes due is what those steps would
        have made due one by one, so counts after S steps are the same for every number of
        environments.
        """
        for step in range(max(before + 1, self.starts), after + 1):
            if step % self.train_period == 0:
                yield Due.UPDATE
            if self.target_period is not None and step % self.target_period == 0:
                yield Due.TARGET_COPY
