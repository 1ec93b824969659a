"""The ages in a full replay memory, first-in-first-out and random, as a picture.

    python benchmarks/replay_ages.py docs/images/replay-ages.png

Ages do not depend on what frames show, so these are single numbers. Nothing here is timed.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import matplotlib
import numpy as np

from fastdqn import ReplayMemory

matplotlib.use("Agg")
from matplotlib import pyplot

CAPACITY = 100_000
NUM_ENVS = 1
CAPACITIES_STORED = 8  # how often the memory is filled


def ages(eviction: Literal["fifo", "random"], shares: np.ndarray) -> np.ndarray:
    """The age, in capacities, that each share of the stored frames does not exceed."""
    memory = ReplayMemory(CAPACITY, (1,), num_envs=NUM_ENVS, eviction=eviction)
    frames = np.zeros((NUM_ENVS, 1), np.uint8)
    actions, rewards = np.zeros(NUM_ENVS, np.int64), np.zeros(NUM_ENVS, np.float32)
    no = np.zeros(NUM_ENVS, np.bool_)
    memory.begin(frames)
    for _ in range(CAPACITIES_STORED * CAPACITY // NUM_ENVS):
        memory.append(actions, rewards, frames, no, no)
    share = len(memory) / memory.num_frames
    found = memory.age_quantiles(shares.tolist()) / CAPACITY
    at = {q: found[np.searchsorted(shares, q)] for q in (0.5, 0.9)}
    print(
        f"{eviction:>6}: median age {at[0.5]:.2f}, 90 % up to {at[0.9]:.2f}, oldest "
        f"{found[-1]:.2f} capacities; {share:.1%} of the stored frames can be drawn"
    )
    return found


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    out = parser.parse_args(argv).out
    shares = np.linspace(0, 1, 1001)
    figure, axes = pyplot.subplots(figsize=(6.4, 3.6), layout="constrained")
    axes.plot(ages("fifo", shares), 1 - shares, label='"fifo"')
    axes.plot(ages("random", shares), 1 - shares, label='"random"')
    expected = np.linspace(0, 5, 200)
    axes.plot(expected, np.exp(-expected), "k:", linewidth=1, label="exp(-age / capacity)")
    axes.set(
        xlabel="age: frames stored since, in capacities",
        ylabel="share of the memory that is older",
        xlim=(0, 5),
        ylim=(0, 1),
    )
    axes.legend(frameon=False)
    figure.savefig(out, dpi=150)


if __name__ == "__main__":
    main()
