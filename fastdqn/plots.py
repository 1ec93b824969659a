"""Learning curves: `python -m fastdqn.plots RUN... --out curves.png`.

Each run's curve is the mean score of its last 100 games over frames, from its `episodes.csv`.
`--reference` adds published curves from a CSV file with the columns source, algo, game, frames,
metric and value: those whose metric is a mean, of the `--game`, the `--algo`s and the `--source`
asked for. Published points are often means over iterations of so many frames; `--iteration-frames`
draws the runs' own such means beside them.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import defaultdict, deque
from collections.abc import Mapping, Sequence
from pathlib import Path

import matplotlib

from fastdqn.errors import UserError

__all__ = ["plot"]

WINDOW_GAMES = 100

Curve = tuple[list[float], list[float]]


def plot(
    runs: Sequence[Path],
    out: Path,
    references: Mapping[str, Curve],
    iteration_frames: int | None = None,
) -> None:
    """Draw the curves of `runs`, and the named `references`, into the file `out`."""
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 5), layout="constrained")
    longest = 0.0
    for run in runs:
        frames, scores = _run_curve(run)
        longest = max([longest, *frames])
        (line,) = axes.plot(frames, scores, label=run.resolve().name)
        if iteration_frames is not None:
            label = f"the same, mean of each {iteration_frames:,} frames"
            means = _iteration_means(run, iteration_frames)
            axes.plot(*means, "o-", color=line.get_color(), alpha=0.6, label=label)
            longest = max([longest, *means[0]])
    for label, (frames, scores) in references.items():
        shown = sum(frame <= longest for frame in frames)
        axes.plot(frames[:shown], scores[:shown], "--", marker=".", alpha=0.6, label=label)
    axes.set_xlabel("frames")
    axes.set_ylabel(f"mean score of the last {WINDOW_GAMES} games")
    axes.grid(alpha=0.3)
    axes.legend(fontsize="small")
    try:
        figure.savefig(out, dpi=150)
    except (OSError, ValueError) as error:  # no such folder, or a format that nothing writes
        raise UserError(f"{out}: cannot be written: {error}") from None
    finally:
        pyplot.close(figure)


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def _run_curve(run: Path) -> Curve:
    last: deque[float] = deque(maxlen=WINDOW_GAMES)
    curve: Curve = ([], [])
    for row in _rows(run / "episodes.csv"):
        last.append(float(row["score"]))
        curve[0].append(float(row["frames"]))
        curve[1].append(sum(last) / len(last))
    return curve


def _iteration_means(run: Path, iteration_frames: int) -> Curve:
    """The mean score of the games that ended in each iteration, at the iteration's end."""
    scores: dict[int, list[float]] = defaultdict(list)
    for row in _rows(run / "episodes.csv"):
        scores[-(-int(row["frames"]) // iteration_frames)].append(float(row["score"]))
    ends = sorted(scores)
    return (
        [float(end * iteration_frames) for end in ends],
        [sum(scores[end]) / len(scores[end]) for end in ends],
    )


def _reference_curves(path: Path, game: str, algos: Sequence[str], source: str) -> dict[str, Curve]:
    curves: dict[str, Curve] = defaultdict(lambda: ([], []))
    columns = ("source", "algo", "game", "frames", "metric", "value")
    for row in _rows(path):
        if missing := [name for name in columns if row.get(name) is None]:
            raise UserError(
                f"{path}: a row lacks {', '.join(missing)}; expected {', '.join(columns)}"
            )
        wanted = row["game"].lower() == game.lower() and (not algos or row["algo"] in algos)
        if wanted and source in row["source"] and "mean" in row["metric"]:
            label = f"{row['algo']}, {row['metric'].split('_')[0]} ({row['source']})"
            curves[label][0].append(float(row["frames"]))
            curves[label][1].append(float(row["value"]))
    if not curves:
        raise UserError(f"{path}: has no mean of game={game!r}, algo={algos}, source={source!r}")
    return curves


def main(argv: Sequence[str] | None = None) -> int:
    """The command; returns its exit status."""
    parser = argparse.ArgumentParser(prog="python -m fastdqn.plots", allow_abbrev=False)
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="a run's folder")
    parser.add_argument("--out", type=Path, required=True, help="the image to write")
    parser.add_argument("--reference", type=Path, help="a CSV file of published curves")
    parser.add_argument("--game", default="", help="the game of the published curves")
    parser.add_argument("--algo", action="append", default=[], help="draw this algorithm's alone")
    parser.add_argument("--source", default="", help="draw those whose source contains this")
    parser.add_argument(
        "--iteration-frames", type=int, help="draw means over iterations of this many frames too"
    )
    arguments = parser.parse_args(argv)
    path, game = arguments.reference, arguments.game
    try:
        references: Mapping[str, Curve] = {}
        if path is not None:
            references = _reference_curves(path, game, arguments.algo, arguments.source)
        plot(arguments.runs, arguments.out, references, arguments.iteration_frames)
    except UserError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
