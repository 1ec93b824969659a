"""What is done a million times leaves no memory and no reference behind."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
from test_trainer import cartpole

import fastdqn
from fastdqn.trainer import Trainer

MIB = 2**20


def growth(work: Callable[[], Any], times: int, *objects: object) -> tuple[float, int]:
    """MiB and references to `objects` that the second half of the work adds to the first."""

    def measured() -> tuple[int, int]:
        gc.collect()
        held = psutil.Process().memory_info().rss
        return held, len(gc.get_objects()) + sum(map(sys.getrefcount, objects))

    for _ in range(times // 2):
        work()
    before = measured()
    for _ in range(times - times // 2):
        work()
    after = measured()
    return (after[0] - before[0]) / MIB, after[1] - before[1]


@pytest.mark.slow
@pytest.mark.parametrize("storage", ["raw", "compressed"])
def test_a_million_appends_and_a_hundred_thousand_samples(storage: Any) -> None:
    memory = fastdqn.ReplayMemory(20_000, (8, 8), storage=storage)
    frames = np.random.default_rng(0).integers(0, 256, (500, 1, 8, 8), dtype=np.uint8)
    actions, rewards, no = np.array([1]), np.array([0.5], np.float32), np.array([False])
    memory.begin(frames[0])
    count = 0

    def append() -> None:
        nonlocal count
        count += 1
        memory.append(actions, rewards, frames[count % 500], no, no)

    mib, references = growth(append, 1_000_000, frames, actions, rewards, no, memory)
    assert mib < 8  # a leak of one frame each would be 30 or more
    assert abs(references) < 20
    mib, references = growth(lambda: memory.sample(32), 100_000, memory)
    assert mib < 8
    assert abs(references) < 20


@pytest.mark.slow
def test_a_thousand_evaluations() -> None:
    agent = Trainer(cartpole()).agent()
    mib, references = growth(
        lambda: fastdqn.evaluate(agent, episodes=1, max_frames=20, epsilon=1.0), 1_000, agent
    )
    assert mib < 5
    assert abs(references) < 50


@pytest.mark.slow
def test_a_hundred_checkpoints(tmp_path: Path) -> None:
    trainer = Trainer(cartpole(out=str(tmp_path), steps=100))
    list(trainer.run())
    writer = trainer.output._checkpoints  # type: ignore[attr-defined]
    count = 0

    def checkpoint() -> None:
        nonlocal count
        count += 1
        writer.write(count, trainer.config.to_dict(), {"n": count}, trainer.memory)
        writer.wait()

    mib, references = growth(checkpoint, 100, trainer)
    assert mib < 5
    assert abs(references) < 50
