"""How fast, and how small, is fastdqn, against the limit of the machine and other systems?

    python benchmarks/throughput.py                    # every row, under 15 minutes
    python benchmarks/throughput.py --quick            # every row, under 2 minutes, wider spreads
    python benchmarks/throughput.py --only sample update --json out.json --plot out.png

Each contender's answers are compared first, and what is wrong is not timed; where ours is, the exit
status is 1. It is 0 whatever the speeds are: requirements that are missed are printed as missed.
What each row measures, and how to read it, is in benchmarks/README.md.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import harness
import report
import torch
from bench_emulation import emulation
from bench_kernels import kernels
from bench_learning import breakdown, training, update
from bench_replay import append, memory, sample
from harness import Effort, Row, WrongAnswer
from rich.console import Console

ROWS: Mapping[str, Callable[[Effort], Iterator[Row]]] = {
    "emulation": emulation,
    "append": append,
    "sample": sample,
    "memory": memory,
    "update": update,
    "training": training,
    "breakdown": breakdown,
    "kernels": kernels,
}
FULL = Effort(
    seconds=16.0,
    peer_seconds=6.0,
    emulation_turn_steps=3_200,
    training_seconds=150.0,
    training_turn_steps=160,
    storage_matches=6,
    storage_seconds=12.0,
    processes=True,
    capacities=(10_000, 100_000, 1_000_000),
    peer_capacity=100_000,
)
QUICK = Effort(
    seconds=1.5,
    peer_seconds=0.5,
    emulation_turn_steps=800,
    training_seconds=8.0,
    training_turn_steps=24,
    storage_matches=2,
    storage_seconds=2.0,
    processes=False,
    capacities=(3_000,),
    peer_capacity=3_000,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures the rows that are asked for; returns the exit status."""
    options = parse(arguments)
    warnings.filterwarnings("ignore")  # other systems', of their own affairs
    torch.set_num_threads(options.threads)
    effort = QUICK if options.quick else FULL
    console = Console(width=None if sys.stdout.isatty() else 120)
    about = harness.machine()
    harness.print_machine(console, about)
    seconds: dict[str, float] = {}

    rows: list[Row] = []
    wrong: list[str] = []
    for key in options.only:
        started = time.monotonic()
        try:
            for row in ROWS[key](effort):
                harness.print_row(console, row)
                rows.append(row)
        except WrongAnswer as error:
            wrong.append(f"not timed, as the answer is wrong: {error}")
            console.print(f"\n[red]{wrong[-1]}[/red]", highlight=False)
        seconds[key] = round(time.monotonic() - started, 1)
    harness.print_requirements(console, rows)
    for line in wrong:
        console.print(f"  [red]WRONG[/red]         {line}", highlight=False)
    about["seconds"] = seconds
    shown = ", ".join(f"{key} {taken:.0f}" for key, taken in seconds.items())
    console.print(f"\n{sum(seconds.values()):.0f} seconds: {shown}", highlight=False)
    result = harness.as_json(about, rows, wrong)
    if options.json is not None:
        harness.write_json(options.json, result)
    if options.plot is not None:
        report.plot(result, options.plot)
    return 1 if wrong else 0


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line; see the module's docstring."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--quick", action="store_true", help="under 2 minutes, with wider spreads")
    add("--only", nargs="+", choices=ROWS, default=list(ROWS), metavar="ROW",
        help=f"only these rows, of {', '.join(ROWS)}")  # fmt: skip
    add("--threads", type=int, default=len(os.sched_getaffinity(0)),
        help="that PyTorch computes with (default: one for each core)")  # fmt: skip
    add("--json", type=Path, metavar="PATH", help="also write what the tables say there")
    add("--plot", type=Path, metavar="PATH", help="also draw it there (.png, .svg)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
