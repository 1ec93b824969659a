"""Was a run as fast, and as small, at its end as at its beginning?

    python benchmarks/run_profile.py RUN [--window-steps 50000]

Prints, for each window of a run's steps, the mean raw score of the games that ended in it, steps a
second, and resident memory beside what the replay memory's share of it should be. Reads the run's
`progress.csv` and `episodes.csv`.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Table


def rows(path: Path) -> list[dict[str, str]]:
    """A CSV file's rows."""
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def windows(run: Path, window_steps: int) -> Iterator[tuple[str, ...]]:
    """One line of text cells a window."""
    progress = [row for row in rows(run / "progress.csv") if int(row["steps"]) % window_steps == 0]
    episodes = rows(run / "episodes.csv")
    for before, after in pairwise([{"steps": "0", "seconds": "0"}, *progress]):
        first, last = int(before["steps"]), int(after["steps"])
        scores = [float(row["score"]) for row in episodes if first < int(row["steps"]) <= last]
        speed = (last - first) / (float(after["seconds"]) - float(before["seconds"]))
        resident, replay = int(after["resident_bytes"]) / 1e9, int(after["replay_bytes"]) / 1e9
        yield (
            f"{first:,} to {last:,}",
            str(len(scores)),
            f"{sum(scores) / len(scores):.2f}" if scores else "-",
            f"{speed:.1f}",
            f"{resident:.3f}",
            f"{replay:.3f}",
            f"{resident - replay:.3f}",
        )


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a run's folder")
    parser.add_argument("--window-steps", type=int, default=50_000, help="steps a line")
    options = parser.parse_args()
    table = Table("steps", "games", "mean score", "steps/s", "resident GB", "replay GB", "rest GB")
    try:
        for cells in windows(options.run, options.window_steps):
            table.add_row(*cells)
    except OSError as error:
        parser.error(f"{error.filename}: {error.strerror}; expected a run's folder")
    if not table.rows:
        parser.error(f"no window of {options.window_steps} steps is complete; give --window-steps")
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
