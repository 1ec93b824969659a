"""Does training from a disk keep its speed, where the frames are several times the memory?

    python benchmarks/bench_disk.py                                    # 4 times 1 GiB, 4 minutes
    python benchmarks/bench_disk.py --folder /mnt/ssd --write

Two runs take turns: one with raw frames in files under --folder, in a process that may hold 1 GiB,
page cache included (see memory_group), the other with as many raw frames in memory and no limit.
Both memories are filled first, without training, so that batches are drawn from all over them; what
the files' pages take is then several times what the limit lets stay in memory. Needs the limit's
multiple in memory and on the disk. --write puts the table into docs/memory.md.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from itertools import repeat
from pathlib import Path
from typing import Any

import harness
import psutil
import report
from bench_learning import BATCH, LEARNING_STARTS_STEPS, TRAIN_PERIOD_STEPS, our_config
from bench_stores import fill, played, source
from harness import OURS, Contender, Row
from memory_group import NoMemoryGroup, entering, memory_group, most_held
from rich.console import Console

from fastdqn.errors import UserError
from fastdqn.machine import memory_limits
from fastdqn.trainer import Trainer
from fastdqn.units import bytes_text, parse_bytes

__all__ = ["PAGE", "Run", "main", "measure"]

PAGE = Path(__file__).resolve().parents[1] / "docs/memory.md"
FRAME_BYTES = 84 * 84
IN_MEMORY = "the same frames in memory"
REQUIRED = 0.7


class Run:
    """A training run in a process of its own, that goes on for a turn when it is told to."""

    def __init__(
        self, frames: int, turn_steps: int, folder: Path | None, group: Path | None
    ) -> None:
        described = json.dumps([frames, turn_steps, None if folder is None else str(folder)])
        command = [sys.executable, str(Path(__file__).resolve()), "--run", described]
        self._process = subprocess.Popen(
            command if group is None else entering(group, command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.uses: list[dict[str, int]] = []
        """What the process had used up by the end of each turn."""

    def turn(self) -> dict[str, int]:
        """The next turn; before the first one the memory is filled. EOFError where it has died."""
        source, sink = self._process.stdout, self._process.stdin
        assert source is not None
        assert sink is not None
        try:
            sink.write("\n")
            sink.flush()
        except BrokenPipeError:
            pass
        line = source.readline()
        if not line:
            raise EOFError(f"a run has ended with status {self._process.wait()}")
        self.uses.append(json.loads(line))
        return self.uses[-1]

    def close(self) -> None:
        """End the process, and wait for it: its group can then be removed."""
        with self._process as process:  # closes its pipes and waits
            process.kill()


def run(frames: int, turn_steps: int, folder: str | None) -> None:
    """The process: a turn for each line that comes in."""
    config = replace(
        our_config(turn_steps, replay_storage="raw", replay_dir=folder),
        replay_capacity=frames,
    )
    trainer = Trainer(config)
    play = played("Breakout", min(frames, 2_000))
    fill([trainer.memory], repeat(play))
    if folder is not None:
        trainer.memory.flush()  # what is written later is what training writes
    reports = trainer.run()
    for _ in range(LEARNING_STARTS_STEPS // turn_steps + 1):
        next(reports)
    for _ in sys.stdin:
        made = next(reports)
        counted = psutil.Process().io_counters()
        uses = {
            "steps": made.steps,
            "updates": made.updates,
            "resident": made.resident_bytes,
            "read": counted.read_bytes,
            "faults": resource.getrusage(resource.RUSAGE_SELF).ru_majflt,
        }
        print(json.dumps(uses), flush=True)


def measure(limit: int, times: float, folder: Path, seconds: float, turn_steps: int) -> Row:
    """The two in turns. Raises `NoMemoryGroup`, MemoryError where there is too little memory, and
    EOFError where a run could not be made, which has then said why."""
    frames = int(times * limit / FRAME_BYTES)
    needed = frames * FRAME_BYTES + limit + 2**30
    left = min(found.left for found in memory_limits())
    if needed > left:
        raise MemoryError(
            f"this takes {bytes_text(needed)} of memory, and there are {bytes_text(left)}"
        )
    size = bytes_text(frames * FRAME_BYTES)
    row = Row(
        "disk",
        f"Training from {frames:,} raw frames, {size}: in files, within {bytes_text(limit)}",
        "steps/s",
    )

    def contender(run: Run) -> Callable[[ExitStack], harness.Turn]:
        def turn() -> float:
            due = run.uses[-1]["updates"] + turn_steps // TRAIN_PERIOD_STEPS
            made = run.turn()["updates"]
            harness.agree(f"disk: {made} updates where {due} were due", made == due)
            return turn_steps

        def prepare(resources: ExitStack) -> harness.Turn:
            run.turn()
            return turn

        return prepare

    with ExitStack() as opened:
        name = f"fastdqn-{os.getpid()}"
        group = opened.enter_context(memory_group(name, limit))
        frames_folder = opened.enter_context(tempfile.TemporaryDirectory(dir=folder))
        files, memory = (
            Run(frames, turn_steps, Path(frames_folder), group),
            Run(frames, turn_steps, None, None),
        )
        opened.callback(memory.close)
        opened.callback(files.close)
        contenders = [Contender(OURS, contender(files)), Contender(IN_MEMORY, contender(memory))]
        row.add(harness.match(contenders, seconds=seconds))
        held = most_held(group)
    row.require_ratio(IN_MEMORY, REQUIRED)
    first, last = files.uses[0], files.uses[-1]
    steps = last["steps"] - first["steps"]
    read, faults = ((last[key] - first[key]) / steps for key in ("read", "faults"))
    row.notes += [
        f"in files: {bytes_text(last['resident'])} resident at the end, pages of the files "
        f"included; the group held {bytes_text(held)} at most, page cache included",
        f"in files, for each step: {read:,.0f} bytes read from the disk, {faults:.2f} faults that "
        "waited for it",
        f"in memory: {bytes_text(memory.uses[-1]['resident'])} resident",
        f"{turn_steps} steps a turn, batch {BATCH} every {TRAIN_PERIOD_STEPS} steps, float32",
    ]
    return row


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--limit", default="1GiB", metavar="SIZE", help="of the process's memory (default: 1GiB)")
    add("--times", type=float, default=4.0, help="the frames are this times it (default: 4)")
    add("--folder", type=Path, help="for the files (default: where temporary files are)")
    add("--seconds", type=float, default=100.0, help="for the turns (default: 100)")
    add("--turn-steps", type=int, default=400, help="of one turn, a multiple of 4 (default: 400)")
    add("--write", action="store_true", help="the table into docs/memory.md too")
    add("--run", help=argparse.SUPPRESS)  # the process of one run
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints; status 2 where it cannot be measured here."""
    options = parse(arguments)
    if options.run is not None:
        try:
            run(*json.loads(options.run))
        except UserError as error:
            print(f"bench_disk: {error}", file=sys.stderr)
            return 2
        return 0
    console = Console(width=None if sys.stdout.isatty() else 120)
    about: dict[str, Any] = harness.machine()
    harness.print_machine(console, about)
    try:
        row = measure(
            parse_bytes(options.limit),
            options.times,
            options.folder or Path(tempfile.gettempdir()),
            options.seconds,
            options.turn_steps,
        )
    except (NoMemoryGroup, MemoryError, EOFError) as error:
        print(f"bench_disk: not measured: {error}", file=sys.stderr)
        return 2
    harness.print_row(console, row)
    harness.print_requirements(console, [row])
    if options.write:
        (shown,) = harness.as_json(about, [row], [])["rows"]
        text = f"{report.markdown(shown)}\n\n{source(about)}"
        PAGE.write_text(
            report.fill(PAGE.read_text(encoding="utf-8"), "disk", text), encoding="utf-8"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
