"""What a frame takes and what reading it costs: ways of holding frames, and the stores themselves.

    python benchmarks/bench_stores.py                   # the schemes and the stores, 100,000 frames
    python benchmarks/bench_stores.py --frames 1000000 --json stores.json --plot stores.png

Frames are those of random play in the project's own environment. The schemes are read by one loop
without read-ahead (bench_stores.cpp, built here with a C++20 compiler); the stores are whole
replay memories, which take turns. Nothing is timed before its frames were found to be right.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from harness import agree, machine
from numpy.typing import NDArray

from fastdqn import AtariEnv
from fastdqn.replay import ReplayMemory

ROOT = Path(__file__).resolve().parents[1]
FLAGS = ("-std=c++20", "-O3", "-DNDEBUG", "-Wno-maybe-uninitialized")
GAMES = ("Breakout", "Pong", "SpaceInvaders", "Seaquest", "BeamRider", "Enduro")
BATCH, STACK = 32, 4
TURNS, CALLS = 40, 20


def played(game: str, steps: int = 1500) -> NDArray[np.uint8]:
    """The observations of random play, games one behind the other."""
    env = AtariEnv(game)
    random = np.random.default_rng(1)
    frames = np.empty((steps, 84, 84), np.uint8)
    frames[0], _ = env.reset(seed=1)
    for step in range(1, steps):
        frames[step], _, terminated, truncated, _ = env.step(random.integers(env.action_space.n))
        if terminated or truncated:
            frames[step], _ = env.reset()
    return frames


def schemes(driver: Path, frames: NDArray[np.uint8], capacity: int) -> list[dict[str, Any]]:
    """Bytes a frame and microseconds a batch, of every scheme."""
    with tempfile.NamedTemporaryFile() as file:
        frames.tofile(file)
        file.flush()
        run = subprocess.run(
            [driver, file.name, str(capacity)], check=True, capture_output=True, text=True
        )
    rows = [line.split("\t") for line in run.stdout.splitlines()]
    return [{"scheme": name, "bytes": float(size), "us": float(us)} for name, size, us in rows]


def build(folder: str) -> Path:
    driver = Path(folder) / "bench_stores"
    sources = [ROOT / "csrc/fastdqn/frame_codec.cpp", Path(__file__).with_suffix(".cpp")]
    command = [os.environ.get("CXX", "c++"), *FLAGS, f"-I{ROOT / 'csrc'}", "-o", driver, *sources]
    subprocess.run(command, check=True)
    return driver


def stores(frames: NDArray[np.uint8], capacity: int, folder: str) -> list[dict[str, Any]]:
    """The four stores, full: bytes a frame, and medians of appending and of sampling."""
    memories: dict[str, ReplayMemory] = {}
    rows: dict[str, dict[str, Any]] = {}
    action, reward, no = np.zeros(1, np.int64), np.zeros(1, np.float32), np.zeros(1, np.bool_)
    there_and_back = np.concatenate([np.arange(len(frames)), np.arange(len(frames) - 2, 0, -1)])
    for storage in ("raw", "compressed"):
        for directory in (None, tempfile.mkdtemp(dir=folder)):
            name = storage + (", files" if directory else "")
            memory = ReplayMemory(capacity, storage=storage, directory=directory)
            memory.begin(frames[:1])
            for step in range(1, capacity):
                frame = there_and_back[step % len(there_and_back)]
                memory.append(action, reward, frames[frame : frame + 1], no, no)
            memories[name] = memory
            rows[name] = {"store": name, "bytes": memory.frame_nbytes_mean}
    first = memories["raw"].gather([capacity // 2])
    for name, memory in memories.items():
        agree(name, bool((memory.gather([capacity // 2]).states == first.states).all()))
    for layout in ("planar", "channels last"):
        for name, us in turns(memories, layout).items():
            rows[name][f"sample, {layout}, us"] = us
    appending = {name: [] for name in memories}
    for turn in range(TURNS):
        for name in sorted(memories, reverse=turn % 2 == 1):
            began = time.perf_counter()
            for step in range(100):
                memories[name].append(action, reward, frames[step : step + 1], no, no)
            appending[name].append((time.perf_counter() - began) / 100 * 1e6)
    for name, times in appending.items():
        rows[name]["append, us"] = statistics.median(times)
    for memory in memories.values():
        memory.close()
    return list(rows.values())


def turns(memories: dict[str, ReplayMemory], layout: str) -> dict[str, float]:
    """Median microseconds of sample_into, the memories taking turns."""
    if layout == "planar":
        window = np.empty((BATCH, STACK + 1, 84, 84), np.uint8)
        states, next_states = window[:, :-1], window[:, 1:]
    else:
        shape, axes = (2, BATCH, 84, 84, STACK), (0, 1, 4, 2, 3)
        states, next_states = np.empty(shape, np.uint8).transpose(axes)
    actions, indices = np.empty((2, BATCH), np.int64)
    rewards, discounts = np.empty((2, BATCH), np.float32)
    times: dict[str, list[float]] = {name: [] for name in memories}
    for turn in range(TURNS):
        for name in sorted(memories, reverse=turn % 2 == 1):
            began = time.perf_counter()
            for _ in range(CALLS):
                memories[name].sample_into(
                    states, next_states, actions, rewards, discounts, indices
                )
            times[name].append((time.perf_counter() - began) / CALLS * 1e6)
    return {name: statistics.median(taken) for name, taken in times.items()}


def show(rows: list[dict[str, Any]]) -> None:
    for row in rows:
        name, *values = row.values()
        unit = "".join(f"{value:>12,.1f}" for value in values)
        print(f"  {name:<44}{unit}", flush=True)


def plot(results: dict[str, Any], path: Path) -> None:
    """The curve: each scheme's mean over the games, time against size."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 5.5), layout="constrained")
    names = [row["scheme"] for row in next(iter(results.values()))["schemes"]]
    for at, name in enumerate(names):
        each = [game["schemes"][at] for game in results.values()]
        size, us = (statistics.mean(row[key] for row in each) for key in ("bytes", "us"))
        marker = "*" if "half" in name else "osD^v<>PX"[at % 9]
        axes.scatter(size, us, label=name, marker=marker, s=70)
    axes.set(xscale="log", xlabel="bytes a frame (log)", ylabel="µs to read 32 runs of 5 frames")
    axes.set_title(f"Ways of holding frames: means of {', '.join(results)}")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("games", nargs="*", default=GAMES, metavar="GAME")
    parser.add_argument("--frames", type=int, default=100_000, help="frames in each memory")
    parser.add_argument("--folder", help="for the stores in files; a temporary one by default")
    parser.add_argument("--only", choices=("schemes", "stores"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--plot", type=Path, help="of the schemes, as PNG")
    options = parser.parse_args()
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        driver = build(folder) if options.only != "stores" else None
        for game in options.games:
            frames = played(game)
            result = results[game] = {}
            if driver is not None:
                print(f"{game}: bytes a frame, µs to read 32 runs of 5 frames")
                result["schemes"] = schemes(driver, frames, options.frames)
                show(result["schemes"])
            if options.only != "schemes":
                print(
                    f"{game}: bytes a frame; µs to sample 32, planar and channels last; to append"
                )
                result["stores"] = stores(frames, options.frames, folder)
                show(result["stores"])
    if options.json is not None:
        content = {"machine": machine(), "frames": options.frames, "games": results}
        options.json.write_text(json.dumps(content, indent=1) + "\n")
    if options.plot is not None and options.only != "stores":
        plot(results, options.plot)
    return 0


if __name__ == "__main__":
    sys.exit(main())
