"""A device that does nothing until it is told to.

What would go wrong on a busy GPU goes wrong here: a host slot refilled while its copy is queued, a
device slot overwritten while it is read.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import torch
from torch import Tensor


class Mark:
    """One recording of an event: what waits for it is not moved by later recordings."""

    def __init__(self, done: bool) -> None:
        self.done = done


class FakeEvent:
    def __init__(self, lane: FakeLane) -> None:
        self.mark = Mark(done=True)  # nothing recorded yet
        self._lane = lane

    def synchronize(self) -> None:
        mark = self.mark
        self._lane.host_waits += not mark.done
        while not mark.done:
            self._lane.run_one("copy")


class FakeLane:
    """Two queues that stand still until something waits for them."""

    pinned = False

    def __init__(self) -> None:
        self.queues: dict[str, deque[tuple[Callable[[], bool], Callable[[], None]]]] = {
            "copy": deque(),
            "compute": deque(),
        }
        self.host_waits = 0

    def put(
        self, queue: str, do: Callable[[], None], ready: Callable[[], bool] = lambda: True
    ) -> None:
        self.queues[queue].append((ready, do))

    def run_one(self, queue: str) -> None:
        ready, do = self.queues[queue][0]
        while not ready():  # what it waits for is on the other queue
            self.run_one("compute" if queue == "copy" else "copy")
        self.queues[queue].popleft()
        do()

    def run_all(self) -> None:
        while self.queues["compute"] or self.queues["copy"]:
            self.run_one("compute" if self.queues["compute"] else "copy")

    def event(self) -> FakeEvent:
        return FakeEvent(self)

    def device_tensor(self, host: Tensor) -> Tensor:
        return torch.zeros_like(host)

    def queue_copying(self, work: Callable[[], None]) -> None:
        self.put("copy", work)

    def _record(self, queue: str, event: FakeEvent) -> None:
        mark = event.mark = Mark(done=False)
        self.put(queue, lambda: setattr(mark, "done", True))

    def record_copied(self, event: FakeEvent) -> None:
        self._record("copy", event)

    def record_computed(self, event: FakeEvent) -> None:
        self._record("compute", event)

    def copy_waits_for(self, event: FakeEvent) -> None:
        mark = event.mark
        self.put("copy", lambda: None, lambda: mark.done)

    def compute_waits_for(self, event: FakeEvent) -> None:
        mark = event.mark
        self.put("compute", lambda: None, lambda: mark.done)
