"""What a frame takes and what reading it costs: ways of holding frames, and the stores themselves.

    python benchmarks/bench_stores.py                       # every section
    python benchmarks/bench_stores.py --only codec append   # some
    python benchmarks/bench_stores.py Pong --only stores --frames 100000
    python benchmarks/bench_stores.py --only schemes --write

Prints each section as a table in markdown; --write puts it into docs/stores.md, and the schemes'
picture beside it, with the command and the machine. Frames are those of random play in the
project's own environment, each of them another. The schemes and the codec are measured by
bench_stores.cpp, built here with a C++20 compiler; the stores are whole replay memories, which take
turns. Nothing is timed before its frames were found to be right.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import harness
import numpy as np
import report
from harness import Contender, agree
from numpy.typing import NDArray
from replay_peers import scratch_folder

from fastdqn.envs.make import make_envs
from fastdqn.machine import memory_limits, resident_bytes
from fastdqn.replay import ReplayMemory

__all__ = ["PAGE", "PICTURE", "SECTIONS", "fill", "main", "play"]

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/stores.md"
PICTURE = ROOT / "docs/images/stores.png"
FLAGS = ("-std=c++20", "-O3", "-DNDEBUG", "-Wno-maybe-uninitialized")
GAMES = ("Breakout", "Pong", "SpaceInvaders", "Seaquest", "BeamRider", "Enduro")
BATCH, STACK, FRAME_BYTES = 32, 4, 84 * 84
RAW, MAPPED, MAPPED_COMPRESSED = "raw", "raw, in files", "compressed, in files"
ENVIRONMENTS, RUN_STEPS = 8, 500

Frames = NDArray[np.uint8]
Table = tuple[Sequence[str], list[list[str]]]
"""A heading, and the cells of each line."""


def play(game: str) -> Iterator[Frames]:
    """Random play without end, in runs [n, 84, 84] of consecutive observations of one game."""
    processes = len(os.sched_getaffinity(0))
    envs = make_envs(None, game, ENVIRONMENTS, seed=1, workers=min(processes, ENVIRONMENTS))
    random = np.random.default_rng(1)
    runs = np.empty((ENVIRONMENTS, RUN_STEPS, *envs.frame_shape), np.uint8)
    filled = np.zeros(ENVIRONMENTS, np.int64)

    def put(frames: Frames, env_ids: NDArray[np.int64]) -> None:
        runs[env_ids, filled[env_ids]] = frames
        filled[env_ids] += 1

    try:
        put(envs.reset(), np.arange(ENVIRONMENTS))
        while True:
            result = envs.step(random.integers(envs.num_actions, size=ENVIRONMENTS))
            put(result.frames, np.arange(ENVIRONMENTS))
            ended = result.terminated | result.truncated
            for env in np.flatnonzero(ended | (filled == RUN_STEPS)):
                yield runs[env, : filled[env]].copy()
                filled[env] = 0
            if ended.any():
                which = np.flatnonzero(ended)
                put(envs.reset(which), which)
    finally:
        envs.close()


def played(game: str, frames: int) -> Frames:
    """So many observations of random play, one run behind the other."""
    found, count = [], 0
    runs = play(game)
    while count < frames:
        found.append(next(runs))
        count += len(found[-1])
    runs.close()  # type: ignore[attr-defined]
    return np.concatenate(found)[:frames]


ACTION, REWARD, NO = np.zeros(1, np.int64), np.zeros(1, np.float32), np.zeros(1, np.bool_)


def fill(memories: Sequence[ReplayMemory], runs: Iterator[Frames]) -> None:
    """The same play into every memory, which are of one capacity, until all of them are full."""
    while memories[0].num_frames < memories[0].capacity:
        run = next(runs)
        for memory in memories:
            memory.begin(run[:1])
            for at in range(1, len(run)):
                memory.append(ACTION, REWARD, run[at : at + 1], NO, NO)


def check_equal(memories: Mapping[str, ReplayMemory]) -> None:
    """The same can be drawn from all of them, and reads the same."""
    (_, first), *others = memories.items()
    indices = np.random.default_rng(2).choice(first.valid_indices(), 500)
    expected = first.gather(indices)
    for name, memory in others:
        agree(f"{name}: what can be drawn", len(memory) == len(first))
        batch = memory.gather(indices)
        agree(f"{name}: states", np.array_equal(batch.states, expected.states))
        agree(f"{name}: next states", np.array_equal(batch.next_states, expected.next_states))


def sampling(memory: ReplayMemory, *, channels_last: bool) -> harness.Turn:
    """Turns of `sample_into` arrays as the trainer has them."""
    if channels_last:
        shape, axes = (2, BATCH, 84, 84, STACK), (0, 1, 4, 2, 3)
        states, next_states = np.empty(shape, np.uint8).transpose(axes)
    else:
        window = np.empty((BATCH, STACK + 1, 84, 84), np.uint8)
        states, next_states = window[:, :-1], window[:, 1:]
    actions, indices = np.empty((2, BATCH), np.int64)
    rewards, discounts = np.empty((2, BATCH), np.float32)
    arrays = (states, next_states, actions, rewards, discounts, indices)
    return harness.repeat(lambda: memory.sample_into(*arrays), 20)


def appending(memory: ReplayMemory, run: Frames) -> harness.Turn:
    """Turns of storing a run, whose frames lie ready."""
    frames = [run[at : at + 1] for at in range(len(run))]

    def turn() -> float:
        memory.begin(frames[0])
        for frame in frames[1:]:
            memory.append(ACTION, REWARD, frame, NO, NO)
        return len(frames)

    return turn


def microseconds(turns: Mapping[str, harness.Turn], seconds: float) -> dict[str, list[float]]:
    """Each one's microseconds, turn by turn."""

    def ready(turn: harness.Turn) -> Callable[[ExitStack], harness.Turn]:
        return lambda _: turn

    contenders = [Contender(name, ready(turn)) for name, turn in turns.items()]
    row = harness.Row("stores", "", "µs")
    row.add(harness.match(contenders, seconds=seconds))
    return row.figures


def median(figures: Sequence[float]) -> str:
    return f"{statistics.median(figures):.1f}"


def ratio(ours: Sequence[float], theirs: Sequence[float]) -> str:
    """Of two that took turns, turn by turn."""
    return f"{statistics.median(a / b for a, b in zip(ours, theirs, strict=True)):.2f}"


def stores(options: Options) -> Table:
    """Sampling from a full memory, and appending to it, raw and compressed in turns."""
    head = ["", "bytes a frame"]
    for work in ("planar", "channels last"):
        head += [f"sample({BATCH}), {work}: raw", "compressed", "ratio"]
    head += ["append: raw", "compressed"]
    lines = []
    for game in options.games or ("Breakout", "BeamRider"):
        capacity = options.frames or 1_000_000
        needed = 1.2 * capacity * FRAME_BYTES
        if needed > min(limit.left for limit in memory_limits()):
            lines.append([game, f"needs {needed / 1e9:.1f} GB of memory", *[""] * (len(head) - 2)])
            continue
        memories = {
            storage: ReplayMemory(capacity, storage=storage) for storage in (RAW, "compressed")
        }
        runs = play(game)
        fill(list(memories.values()), runs)
        check_equal(memories)
        line = [game, f"{memories['compressed'].frame_nbytes_mean:.0f}"]
        for channels_last in (False, True):
            drawn = {
                name: sampling(memory, channels_last=channels_last)
                for name, memory in memories.items()
            }
            found = microseconds(drawn, options.seconds)
            raw, ours = found[RAW], found["compressed"]
            line += [median(raw), median(ours), ratio(ours, raw)]
        run = next(runs)
        stored = {name: appending(memory, run) for name, memory in memories.items()}
        found = microseconds(stored, options.seconds)
        lines.append([*line, median(found[RAW]), median(found["compressed"])])
        runs.close()  # type: ignore[attr-defined]
    return head, lines


def append(options: Options) -> Table:
    """Storing frames, raw and compressed in turns, with what that is more."""
    lines = []
    for game in options.games or GAMES:
        runs = play(game)
        memories = {
            storage: ReplayMemory(options.frames or 20_000, storage=storage)
            for storage in (RAW, "compressed")
        }
        fill(list(memories.values()), runs)
        check_equal(memories)
        run = next(runs)
        runs.close()  # type: ignore[attr-defined]
        found = microseconds(
            {name: appending(memory, run) for name, memory in memories.items()}, options.seconds
        )
        more = [b - a for a, b in zip(found[RAW], found["compressed"], strict=True)]
        lines.append(
            [game, *(f"{statistics.median(each):.2f}" for each in (*found.values(), more))]
        )
    return ["", "raw", "compressed", "more"], lines


def files(options: Options) -> Table:
    """The four stores, files in memory: what mapping and asking for pages cost."""
    capacity = options.frames or 20_000
    head = ["", "raw", "compressed", MAPPED, MAPPED_COMPRESSED]
    lines = []
    for game in options.games or ("Breakout",):
        with scratch_folder(2 * capacity * FRAME_BYTES) as folder, ExitStack() as opened:
            memories = {}
            for name in head[1:]:
                storage, *in_files = name.split(", ")
                directory = tempfile.mkdtemp(dir=folder) if in_files else None
                memory = ReplayMemory(capacity, storage=storage, directory=directory)
                memories[name] = opened.enter_context(memory)
            runs = play(game)
            fill(list(memories.values()), runs)
            runs.close()  # type: ignore[attr-defined]
            check_equal(memories)
            drawn = {
                name: sampling(memory, channels_last=False) for name, memory in memories.items()
            }
            found = microseconds(drawn, options.seconds)
        lines.append([game, *(median(found[name]) for name in head[1:])])
    return head, lines


def resident(options: Options) -> Table:
    """What a compressed memory really takes when it is full: told by it, and by the system."""
    capacity = options.frames or 1_000_000
    lines = []
    for game in options.games or ("Breakout", "Pong", "Seaquest"):
        runs = play(game)
        next(runs)  # by now the environments and their workers are there
        before = resident_bytes()
        memory = ReplayMemory(capacity, storage="compressed")
        fill([memory], runs)
        grown = resident_bytes() - before
        runs.close()  # type: ignore[attr-defined]
        figures = (memory.nbytes_now / 1e9, grown / 1e9)
        lines.append([game, f"{memory.num_frames:,}", *(f"{figure:.3f}" for figure in figures)])
    head = ["", "frames", "GB, frames and records", "GB, growth of the process's resident memory"]
    return head, lines


def driver(options: Options, mode: str, frames: Frames) -> list[list[str]]:
    """What bench_stores.cpp prints, a line a measurement."""
    if not options.driver.exists():
        sources = [ROOT / "csrc/fastdqn/frame_codec.cpp", Path(__file__).with_suffix(".cpp")]
        compiler = os.environ.get("CXX", "c++")
        include = f"-I{ROOT / 'csrc'}"
        command = [compiler, *FLAGS, include, "-o", options.driver, *sources]
        subprocess.run(command, check=True)
    with tempfile.NamedTemporaryFile() as file:
        frames.tofile(file)
        file.flush()
        run = subprocess.run(
            [options.driver, mode, file.name], check=True, capture_output=True, text=True
        )
    return [line.split("\t") for line in run.stdout.splitlines()]


def schemes(options: Options) -> Table:
    """Ways of holding frames: means over the games."""
    games = options.games or GAMES
    found: dict[str, list[tuple[float, float]]] = {}
    for game in games:
        frames = played(game, options.frames or 100_000)
        for name, size, us in driver(options, "schemes", frames):
            found.setdefault(name, []).append((float(size), float(us)))
    means = {
        name: tuple(statistics.mean(column) for column in zip(*each, strict=True))
        for name, each in found.items()
    }
    if options.picture is not None:
        plot(means, games, options.picture)
    lines = [[name, f"{size:,.0f}", f"{us:.1f}"] for name, (size, us) in means.items()]
    return ["scheme", "bytes a frame", "µs a batch"], lines


def codec(options: Options) -> Table:
    """Writing and reading one change or one whole frame, by each of the processor's ways."""
    games = options.games or GAMES
    found: dict[str, list[list[float]]] = {}
    for game in games:
        for name, *figures in driver(options, "codec", played(game, options.frames or 5_000)):
            found.setdefault(name, []).append([float(figure) for figure in figures])
    lines = []
    for name, each in found.items():
        columns = zip(*each, strict=True)
        lines.append([name, *(f"{min(column):.2f} to {max(column):.2f}" for column in columns)])
    return ["", "write a change", "read it", "write a key", "read it"], lines


def plot(means: Mapping[str, Sequence[float]], games: Sequence[str], path: Path) -> None:
    """The curve: each scheme's mean over the games, time against size."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    for at, (name, (size, us)) in enumerate(means.items()):
        marker = "*" if "half" in name else "osD^v<>PX"[at % 9]
        axes.scatter(size, us, label=name, marker=marker, s=70)
    axes.set(xscale="log", xlabel="bytes a frame (log)", ylabel="µs to read 32 runs of 5 frames")
    axes.set_title(f"Ways of holding frames: means of {', '.join(games)}")
    axes.set_ylim(bottom=0)
    axes.grid(alpha=0.3)
    axes.legend(fontsize=8)
    figure.savefig(path, dpi=120)


# Each takes about 5 minutes at most on two idle cores.
SECTIONS: Mapping[str, Callable[[Options], Table]] = {
    "schemes": schemes,
    "codec": codec,
    "append": append,
    "files": files,
    "stores": stores,
    "resident": resident,
}


@dataclass(frozen=True)
class Options:
    """What a section is to measure; None: what it measures of itself."""

    games: Sequence[str]
    frames: int | None
    seconds: float
    """For the turns of one comparison."""
    driver: Path
    """Where bench_stores.cpp is built, when it is needed."""
    picture: Path | None


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("games", nargs="*", metavar="GAME", help="(default: those of the section)")
    add("--only", nargs="+", choices=SECTIONS, default=list(SECTIONS), metavar="SECTION",
        help=f"of {', '.join(SECTIONS)}")  # fmt: skip
    add("--frames", type=int, help="to play and to store (default: what the section needs)")
    add("--seconds", type=float, default=5.0, help="for the turns of one comparison (default: 5)")
    add("--write", action="store_true", help="the tables into docs/stores.md too, with the picture")
    return parser.parse_intermixed_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures the sections that are asked for."""
    chosen = parse(arguments)
    about = harness.machine()
    for name in chosen.only:
        with tempfile.TemporaryDirectory() as folder:
            options = Options(
                chosen.games,
                chosen.frames,
                chosen.seconds,
                Path(folder) / "bench_stores",
                PICTURE if chosen.write else None,
            )
            head, lines = SECTIONS[name](options)
        text = f"{report.table(head, lines)}\n\n{source(about)}"
        print(f"\n{text}", flush=True)
        if chosen.write:
            before = PAGE.read_text(encoding="utf-8")
            PAGE.write_text(report.fill(before, name, text), encoding="utf-8")
    return 0


def source(about: Mapping[str, Any]) -> str:
    """Where the figures are from, in a line; what made them worth nothing is in it."""
    busy = f", **load {about['load_at_start']} at the start**" if report.is_busy(about) else ""
    return (
        f"`{about['command']}`, commit {about['commit']}, {about['cores']} cores of "
        f"{about['cpu']}{busy}."
    )


if __name__ == "__main__":
    sys.exit(main())
