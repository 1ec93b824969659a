"""Batches gathered by threads: the same as without, whole, and clean however it ends."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import numpy as np
import pytest

from fastdqn.replay import Prefetcher, ReplayMemory

SHAPE = (64, 64)
ROWS = 100  # enough bytes to be shared out between threads

Arrays = dict[str, np.ndarray[Any, Any]]


def filled_memory(**settings: Any) -> ReplayMemory:
    memory = ReplayMemory(200, SHAPE, **{"stack": 3, "n_step": 2, "seed": 7, **settings})
    memory.begin(frames(0))
    for step in range(150):
        append(memory, step)
    return memory


def frames(number: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(number).integers(0, 256, (1, *SHAPE)).astype(np.uint8)


def append(memory: ReplayMemory, step: int) -> None:
    no = np.array([False])
    memory.append(np.array([step]), np.array([step / 8]), frames(step + 1), no, no)


def new_arrays(rows: int = ROWS) -> Arrays:
    return {
        "states": np.zeros((rows, 3, *SHAPE), np.uint8),
        "next_states": np.zeros((rows, 3, *SHAPE), np.uint8),
        "actions": np.zeros(rows, np.int64),
        "rewards": np.zeros(rows, np.float32),
        "discounts": np.zeros(rows, np.float32),
        "indices": np.zeros(rows, np.int64),
    }


def assert_same(arrays: Arrays, batch: Any) -> None:
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, getattr(batch, name), err_msg=name)


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_batches_are_those_that_sampling_gives_at_the_time_of_submitting(threads: int) -> None:
    ahead, direct = filled_memory(), filled_memory()
    prefetcher = Prefetcher(ahead, threads)
    for round_ in range(5):
        slots = [new_arrays(rows) for rows in (ROWS, 1, 37)]
        for arrays in slots:
            prefetcher.submit(*arrays.values())
        assert prefetcher.outstanding == 3
        # Waits until the batches are copied, and changes nothing of them.
        append(ahead, 1_000 + round_)
        for arrays in slots:
            prefetcher.wait()
            assert_same(arrays, direct.sample(len(arrays["actions"])))
        append(direct, 1_000 + round_)
    assert prefetcher.outstanding == 0


def test_rows_are_whole_while_another_thread_appends() -> None:
    """Every frame is the one that its episode has there, at the moment of submitting."""
    memory = filled_memory(n_step=1)
    stop = threading.Event()
    step = 150

    def write() -> None:
        nonlocal step
        while not stop.is_set():
            append(memory, step)
            step += 1

    thread = threading.Thread(target=write, daemon=True)
    thread.start()
    try:
        prefetcher = Prefetcher(memory, 2)
        slots = [new_arrays(), new_arrays()]
        prefetcher.submit(*slots[0].values())
        for round_ in range(1, 30):
            prefetcher.submit(*slots[round_ % 2].values())
            prefetcher.wait()
            done = slots[(round_ - 1) % 2]
            for row in range(0, ROWS, 10):
                newest = int(done["actions"][row]) + 1  # the number of the frame reached
                np.testing.assert_array_equal(done["next_states"][row, -1], frames(newest)[0])
                np.testing.assert_array_equal(done["states"][row, -1], frames(newest - 1)[0])
    finally:
        stop.set()
        thread.join(timeout=30)
    assert not thread.is_alive()
    assert step > 160


def test_arrays_and_memory_live_as_long_as_a_batch_may_be_written_to_them() -> None:
    memory = filled_memory()
    prefetcher = Prefetcher(memory, 1)
    arrays = new_arrays()
    watched = weakref.ref(arrays["states"])
    prefetcher.submit(*arrays.values())
    del arrays, memory
    gc.collect()
    assert watched() is not None
    prefetcher.wait()
    assert watched() is None


@pytest.mark.parametrize("closes", [True, False])
def test_it_ends_with_batches_outstanding(closes: bool) -> None:
    memory = filled_memory()
    prefetcher = Prefetcher(memory, 2)
    slots = [new_arrays() for _ in range(20)]
    watched = [weakref.ref(arrays["states"]) for arrays in slots]
    for arrays in slots:
        prefetcher.submit(*arrays.values())
    del slots, arrays
    if closes:
        prefetcher.close()
        with pytest.raises(RuntimeError, match="closed"):
            prefetcher.wait()
        with pytest.raises(RuntimeError, match="closed"):
            prefetcher.submit(*new_arrays().values())
        prefetcher.close()
    del prefetcher
    assert not any(reference() for reference in watched)
    append(memory, 1_000)  # nothing holds it any more


def test_misuse_is_refused() -> None:
    memory = filled_memory()
    for threads in (0, 65, -1, 1.5):
        with pytest.raises((ValueError, TypeError), match="threads"):
            Prefetcher(memory, threads)  # type: ignore[arg-type]
    prefetcher = Prefetcher(memory, 1)
    with pytest.raises(RuntimeError, match="no batch was submitted"):
        prefetcher.wait()
    wrong = new_arrays()
    wrong["rewards"] = wrong["rewards"].astype(np.float64)
    with pytest.raises(TypeError, match="rewards"):
        prefetcher.submit(*wrong.values())
    empty = Prefetcher(ReplayMemory(20, SHAPE, stack=3), 1)
    with pytest.raises(ValueError, match="0 of 0 stored frames can be drawn"):
        empty.submit(*new_arrays().values())
    assert prefetcher.outstanding == empty.outstanding == 0
