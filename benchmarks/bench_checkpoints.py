"""What checkpoints cost a run, with a full replay memory.

    python benchmarks/bench_checkpoints.py           # a million frames compressed, 250,000 raw
    python benchmarks/bench_checkpoints.py --quick   # that it works, on any machine

A run trains on Breakout with a memory that is full of real play, and takes its checkpoints as every
run does. Before each of them the memory gets as many new frames as five minutes of that training
would have given it. What a checkpoint costs is all the time that training was behind its own speed
in the seconds around it: held up while the checkpoint is taken, and slower while a thread brings it
to the disk. The share is of a checkpoint each five minutes.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from bench_replay import breakout_frames
from harness import machine, print_machine
from numpy.typing import NDArray
from rich.console import Console

from fastdqn.config import Config
from fastdqn.replay import ReplayMemory
from fastdqn.run_state import checkpoints_of, nbytes_of_checkpoints
from fastdqn.trainer import Trainer

MIB = 2**20
PERIOD_SECONDS = 300.0
MOST_SHARE = 0.02
MOST_EXTRA_MIB = 64.0
EPISODE_FRAMES = 700
STORAGES = ("compressed", "raw")


@dataclass(frozen=True)
class Effort:
    """How much time to spend."""

    played_frames: int
    """Of real play; a memory gets them again and again, each time shifted by some pixels."""
    quiet_seconds: float
    """Of training without a checkpoint, before each of them."""
    checkpoints: int
    """After five minutes of play each, behind a first one of the whole memory."""


class Play:
    """Frames without end: real play, shifted anew in every round, so that no two are the same."""

    def __init__(self, frames: NDArray[np.uint8]) -> None:
        self._frames = frames
        self._shifted = frames
        self._given = 0

    def add(self, memory: ReplayMemory, count: int) -> None:
        """Append so many frames, in episodes."""
        action, reward, no = np.array([1]), np.zeros(1, np.float32), np.zeros(1, np.bool_)
        for number in range(count):
            turn, place = divmod(self._given, len(self._frames))
            if place == 0:
                self._shifted = np.roll(self._frames, (turn % 5, turn * 11 % 84), axis=(1, 2))
            frame = self._shifted[place : place + 1]
            if number == 0 or place % EPISODE_FRAMES == 0:
                memory.begin(frame)
            else:
                memory.append(action, reward, frame, no, no)
            self._given += 1


@dataclass
class Cost:
    """Of one checkpoint."""

    new_frames: int
    held_up_seconds: float = 0.0
    writing_seconds: float = 0.0
    """That the thread took while training went on."""
    steps_beside: int = 0
    """That training made meanwhile."""
    extra_mib: float = 0.0
    """Peak of the process's memory over what it was."""
    written_mib: float = 0.0
    quiet_steps_per_second: float = 0.0

    @property
    def lost_seconds(self) -> float:
        """What training was behind its own speed."""
        beside = self.writing_seconds - self.steps_beside / self.quiet_steps_per_second
        return self.held_up_seconds + beside

    @property
    def share(self) -> float:
        """Of the time of a run with a checkpoint each five minutes."""
        return self.lost_seconds / PERIOD_SECONDS


@dataclass
class Watch:
    """Asked by the trainer between two steps whether to stop: drives the measurement from there.

    What it does itself, such as filling the memory, is in no figure.
    """

    trainer: Trainer
    play: Play
    effort: Effort
    costs: list[Cost] = field(default_factory=list)
    _quiet: list[float] = field(default_factory=list)  # seconds of each step without a checkpoint
    _speeds: list[float] = field(default_factory=list)  # steps a second before each checkpoint
    _writing: bool = False
    _left_at: float = 0.0
    _began: float = 0.0
    _steps: int = 0
    _resident: int = 0
    _written: int = 0

    def __call__(self) -> bool:
        now = time.perf_counter()
        steps = self.trainer.counters.steps - self._steps
        done = self._after_steps(now, now - self._left_at, steps)
        self._steps = self.trainer.counters.steps
        self._left_at = time.perf_counter()
        return done

    def _after_steps(self, now: float, seconds: float, steps: int) -> bool:
        if self.trainer.counters.updates < 50:  # until learning runs
            self._began = now
        elif self._writing:
            self._beside_writing(self.costs[-1], seconds, steps)
        elif now - self._began < self.effort.quiet_seconds:
            self._quiet.append(seconds / steps)
        else:
            self._speeds.append(1 / statistics.fmean(self._quiet))
            if self.costs:  # its own speed is that before it and behind it
                self.costs[-1].quiet_steps_per_second = statistics.fmean(self._speeds[-2:])
            if len(self.costs) > self.effort.checkpoints:
                return True
            self._begin_checkpoint()
        return False

    def _beside_writing(self, cost: Cost, seconds: float, steps: int) -> None:
        if cost.steps_beside == 0:
            seconds -= cost.held_up_seconds
        cost.writing_seconds += seconds
        cost.steps_beside += steps
        thread = self.trainer.output._checkpoints._under_way  # type: ignore[attr-defined]
        if not thread.is_alive():
            self._writing = False
            cost.extra_mib = (status("VmHWM") - self._resident) / MIB
            cost.written_mib = (nbytes_written() - self._written) / MIB
            self._began, self._quiet = time.perf_counter(), []

    def _begin_checkpoint(self) -> None:
        new = int(self._speeds[-1] * PERIOD_SECONDS) if self.costs else 0
        self.play.add(self.trainer.memory, new)
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
        self._resident = status("VmRSS")
        self._written = nbytes_written()
        cost = Cost(new)
        self.costs.append(cost)
        self._writing = True
        take = self.trainer.output.checkpoint
        save_state = self.trainer._save_state
        began = 0.0

        def saving() -> dict[str, Any]:
            nonlocal began
            began = time.perf_counter()
            return save_state()

        def taking(*what: Any) -> None:
            take(*what)
            cost.held_up_seconds = time.perf_counter() - began
            del self.trainer.output.checkpoint, self.trainer._save_state

        self.trainer.output.checkpoint = taking  # type: ignore[method-assign, assignment]
        self.trainer._save_state = saving  # type: ignore[method-assign]
        self.trainer._checkpoints._last = -PERIOD_SECONDS  # as if five minutes had passed


def status(name: str) -> int:
    """Bytes of this process's memory, by their name in /proc/self/status."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


def nbytes_written() -> int:
    """That this process has given the system to write so far."""
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("wchar")))


def measure(storage: Any, frames: int, effort: Effort, folder: str) -> dict[str, Any]:
    """Train with such a memory and take checkpoints."""
    config = Config(
        game="Breakout",
        replay_capacity=frames,
        replay_storage=storage,
        learning_starts_steps=200,
        steps=10**9,
        log_period_steps=10**9,
        save_period_steps=10**9,
        out=folder,
        device="cpu",
        allow_overcommit=True,
    )
    trainer = Trainer(config)
    play = Play(breakout_frames(effort.played_frames))
    play.add(trainer.memory, frames)
    watch = Watch(trainer, play, effort)
    for _ in trainer.run(watch):
        pass
    run = trainer.output.path
    assert run is not None
    first, *others = watch.costs
    memory_mib = trainer.memory.nbytes_now / MIB
    folder_mib = nbytes_of_checkpoints(run) / MIB
    del trainer, watch, play
    gc.collect()
    loaded = subprocess.run(
        [sys.executable, __file__, "--load", str(checkpoints_of(run)[0])],
        check=True,
        capture_output=True,
        text=True,
    )
    return {
        "storage": storage,
        "frames": frames,
        "memory_mib": memory_mib,
        "folder_mib": folder_mib,
        "first": first,
        "others": others,
        **json.loads(loaded.stdout),
    }


def load(checkpoint: Path) -> None:
    """In a process of its own: what reading the memory takes."""
    before = status("VmRSS")
    began = time.perf_counter()
    memory = ReplayMemory.load(checkpoint / "replay.fastdqn", checkpoint.parent / "chunks")
    seconds = time.perf_counter() - began
    extra = status("VmHWM") - max(status("VmRSS"), before)
    print(json.dumps({"load_seconds": seconds, "load_extra_mib": extra / MIB}))
    assert memory.num_frames > 0


def show(console: Console, result: dict[str, Any]) -> None:
    """One memory's figures."""
    first, others = result["first"], result["others"]

    def median(name: str) -> float:
        return float(statistics.median(getattr(cost, name) for cost in others))

    speed, beside = median("quiet_steps_per_second"), median("steps_beside")
    writing = median("writing_seconds")
    slower = beside / writing / speed if writing and beside else 1.0
    share, extra = median("share"), max(cost.extra_mib for cost in (first, *others))
    lines = (
        f"{result['frames']:,} frames of Breakout, {result['storage']}: a memory of "
        f"{result['memory_mib']:,.0f} MiB, trained at {speed:,.0f} steps/s",
        f"  the first checkpoint, of everything: held up for {first.held_up_seconds:.2f} s, "
        f"{first.writing_seconds:.1f} s of writing, {first.written_mib:,.0f} MiB",
        f"  one after five minutes ({others[0].new_frames:,} new frames), median of {len(others)}: "
        f"held up for {median('held_up_seconds'):.3f} s,",
        f"    {writing:.2f} s of writing beside training at {100 * slower:.0f} % of its speed, "
        f"{median('written_mib'):,.0f} MiB",
        f"  the folder with two of them: {result['folder_mib']:,.0f} MiB",
        f"  loading the memory: {result['load_seconds']:.1f} s",
    )
    for line in lines:
        console.print(line, highlight=False)
    for what, value, most, unit in (
        ("training time lost by one each five minutes", 100 * share, 100 * MOST_SHARE, "%"),
        ("memory beside the run's, at most, of a checkpoint", extra, MOST_EXTRA_MIB, "MiB"),
        ("and of loading", result["load_extra_mib"], MOST_EXTRA_MIB, "MiB"),
    ):
        held = "[green]held[/green]" if value <= most else "[red]missed[/red]"
        console.print(f"  {what}: {value:.2f} {unit}, required {most:g}: {held}", highlight=False)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="small memories: that it works")
    parser.add_argument("--frames", type=int, nargs=2, metavar=("COMPRESSED", "RAW"))
    parser.add_argument("--only", choices=STORAGES)
    parser.add_argument("--folder", help="where the run is put; a temporary folder by default")
    parser.add_argument("--load", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.load is not None:
        load(options.load)
        return 0
    console = Console(width=120)
    print_machine(console, machine())
    effort = Effort(500, 1.0, 1) if options.quick else Effort(20_000, 6.0, 3)
    frames = options.frames or ((4_000, 2_000) if options.quick else (1_000_000, 250_000))
    for storage, count in zip(STORAGES, frames, strict=True):
        if options.only in (None, storage):
            with tempfile.TemporaryDirectory(dir=options.folder) as folder:
                show(console, measure(storage, count, effort, folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
