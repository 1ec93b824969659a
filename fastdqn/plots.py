"""Pictures of runs: scores, evaluations, values, loss, speed and memory, with published curves.

Runs that differ in nothing but their seed are one curve: their mean, in a band from the lowest to
the highest of them. It reads what runs have logged, and refuses folders that hold no logs.
"""

from __future__ import annotations

import csv
import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import matplotlib
import numpy as np
from numpy.typing import NDArray

from fastdqn.config import Config
from fastdqn.errors import UserError
from fastdqn.presets import PRESETS, settings_of

__all__ = ["Group", "Reference", "Run", "draw", "group_runs", "read_references", "read_run"]

WINDOW_GAMES = 100

Values = NDArray[np.float64]
Columns = dict[str, Values]
Axis = Literal["frames", "steps"]

# What may differ between runs of one curve.
_OF_A_RUN_ALONE = frozenset(
    (
        *("seed", "out", "device", "threads", "steps", "frames", "episodes", "hours"),
        *("log_period_steps", "save_period_steps", "prefetch_threads", "workers", "wandb"),
        *("checkpoint_period_minutes", "checkpoint_period_steps", "keep_checkpoints", "init_from"),
        *("replay_storage", "replay_dir", "replay_memory", "replay_device", "allow_overcommit"),
    )
)


@dataclass(frozen=True)
class Run:
    """What one run has logged; empty columns where it has logged nothing."""

    folder: Path
    game: str
    settings: dict[str, Any]
    progress: Columns
    episodes: Columns
    evaluations: Columns


@dataclass(frozen=True)
class Group:
    """Runs that are one curve."""

    label: str
    runs: tuple[Run, ...]


@dataclass(frozen=True)
class Reference:
    """A published curve, over frames."""

    label: str
    of_evaluations: bool
    """Or of the games of training."""
    frames: Values
    mean: Values
    low: Values
    """NaN where no spread was published, as in `high`."""
    high: Values


def read_run(folder: Path) -> Run:
    """What is in a run's folder. Raises `UserError` where it is none."""
    try:
        settings = json.loads((folder / "config.json").read_text())
        game = json.loads((folder / "protocol.json").read_text())["game"]
    except OSError as error:
        what = f"it has no {Path(error.filename).name}" if folder.is_dir() else error.strerror
        raise UserError(f"{folder}: not a run's folder: {what}") from None
    except (ValueError, KeyError) as error:
        raise UserError(f"{folder}: not a run's folder: {error}") from None
    evaluations = folder / "evaluations.csv"
    return Run(
        folder,
        str(game),
        settings,
        _columns(folder / "progress.csv"),
        _columns(folder / "episodes.csv"),
        _columns(evaluations) if evaluations.exists() else {},
    )


def group_runs(runs: Sequence[Run], labels: Sequence[str] = ()) -> list[Group]:
    """The curves that these runs make, in their order, named by what differs between them.

    `labels` are names to use instead, one a curve.
    """
    grouped: dict[str, list[Run]] = {}
    for run in runs:
        kept = {name: run.settings[name] for name in sorted({*run.settings} - _OF_A_RUN_ALONE)}
        grouped.setdefault(json.dumps([run.game, kept]), []).append(run)
    members = list(grouped.values())
    names = list(labels) or _labels([group[0] for group in members])
    if len(names) != len(members):
        raise UserError(
            f"labels given: {len(names)}, curves: {len(members)}; runs that differ in their seed "
            "alone are one curve"
        )
    return [Group(name, tuple(group)) for name, group in zip(names, members, strict=True)]


def _labels(runs: Sequence[Run]) -> list[str]:
    names = {name for run in runs for name in run.settings} - _OF_A_RUN_ALONE - {"game", "env"}
    differ = sorted(n for n in names if len({repr(run.settings.get(n)) for run in runs}) > 1)
    usual = Config().to_dict()
    labels = []
    for run in runs:
        changed = [n for n in differ if _plain(run.settings.get(n)) != _plain(usual.get(n))]
        parts = [_preset(run) or ", ".join(f"{n}={run.settings.get(n)}" for n in changed[:3])]
        if len({run.game for run in runs}) > 1 or not any(parts):
            parts.insert(0, run.game)
        labels.append(", ".join(part for part in parts if part))
    return labels


def _preset(run: Run) -> str | None:
    """The preset that the run has all the settings of."""
    for name in PRESETS:
        settings = {**Config().to_dict(), **settings_of(name, run.settings.get("env"))}
        compared = {*run.settings} & {*settings} - _OF_A_RUN_ALONE - {"game", "env"}
        # What was left to a rule was filled in.
        given = [key for key in compared if settings[key] is not None]
        if all(_plain(run.settings[key]) == _plain(settings[key]) for key in given):
            return name
    return None


def _plain(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _columns(path: Path) -> Columns:
    rows = _rows(path)
    try:
        return {
            name: np.array([float(row[name] or "nan") for row in rows])
            for name in (rows[0] if rows else ())
        }
    except (ValueError, TypeError) as error:
        raise UserError(f"{path}: not a run's log: {error}") from None


def _rows(path: Path) -> list[dict[str, str]]:
    try:
        with path.open(newline="", encoding="utf-8") as file:
            return list(csv.DictReader(file))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None


def read_references(
    path: Path, game: str, algos: Sequence[str] = (), source: str = ""
) -> list[Reference]:
    """Published curves of `game`, of the named `algos` (none: of all), and of the sources whose
    name contains `source`.

    A CSV file with the columns source, algo, game, frames, metric and value. A metric's name begins
    with train or eval and says mean, or else min, max or std for the spread of the same curve.
    """
    points: dict[tuple[str, str, str], dict[str, dict[float, float]]] = defaultdict(
        lambda: defaultdict(dict)
    )
    columns = ("source", "algo", "game", "frames", "metric", "value")
    wanted = _key(game)
    for row in _rows(path):
        if missing := [name for name in columns if row.get(name) is None]:
            raise UserError(
                f"{path}: a row lacks {', '.join(missing)}; expected {', '.join(columns)}"
            )
        if _key(row["game"]) != wanted or (algos and row["algo"] not in algos):
            continue
        if source.lower() not in row["source"].lower():
            continue
        words = row["metric"].split("_")
        kind = next((word for word in ("mean", "min", "max", "std") if word in words), None)
        if kind is not None:
            curve = points[row["algo"], row["source"], words[0]]
            curve[kind][float(row["frames"])] = float(row["value"])
    found = [_reference(*key, curve) for key, curve in points.items() if "mean" in curve]
    if not found:
        raise UserError(
            f"{path}: has no mean of game={game!r}, algo={list(algos)}, source={source!r}"
        )
    return found


def _reference(
    algo: str, source: str, kind: str, curve: Mapping[str, Mapping[float, float]]
) -> Reference:
    frames = np.array(sorted(curve["mean"]))
    mean = np.array([curve["mean"][frame] for frame in frames])
    spread = np.array([curve.get("std", {}).get(frame, np.nan) for frame in frames])
    low, high = mean - spread, mean + spread
    if "min" in curve and "max" in curve:
        low = np.array([curve["min"].get(frame, np.nan) for frame in frames])
        high = np.array([curve["max"].get(frame, np.nan) for frame in frames])
    return Reference(f"{algo} ({source})", kind == "eval", frames, mean, low, high)


def _from_zero(axes: Any) -> None:
    """From zero to a little above the highest point."""
    axes.set_ylim(0, axes.get_ylim()[1] * 1.06)


def _key(game: str) -> str:
    return "".join(letter for letter in game.lower() if letter.isalnum())


def draw(
    groups: Sequence[Group],
    out: Path,
    references: Sequence[Reference] = (),
    *,
    axis: Axis = "frames",
    iteration_frames: int | None = None,
    title: str | None = None,
) -> None:
    """Draw the curves of all `groups` into the file `out`, whose name says which format.

    Published curves are over frames: with `axis` "steps" four frames are taken for a step.
    `iteration_frames` adds the runs' mean scores over each so many frames, which is what published
    points of training often are. Raises `UserError` where the file cannot be written.
    """
    if not out.parent.is_dir():
        raise UserError(f"{out}: cannot be written: there is no folder {out.parent}")
    matplotlib.use("Agg")
    from matplotlib import pyplot

    with matplotlib.rc_context(_STYLE):
        figure = _Figure(groups, references, axis, iteration_frames)
        figure.draw(title)
        try:
            figure.figure.savefig(out, dpi=160)
        except (OSError, ValueError) as error:  # no such folder, or a format that nothing writes
            raise UserError(f"{out}: cannot be written: {error}") from None
        finally:
            pyplot.close(figure.figure)


# Okabe and Ito's colours, which people tell apart whatever their eyes.
_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
_REFERENCE_COLOURS = ("#555555", "#8c6d31", "#7b4173", "#3a7d7d")
_STYLE: dict[Any, Any] = {
    "font.size": 9.0,
    "axes.titlesize": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "svg.hashsalt": "fastdqn",
}
_POINTS = 300
_FRAMES_PER_STEP = 4


class _Figure:
    def __init__(
        self,
        groups: Sequence[Group],
        references: Sequence[Reference],
        axis: Axis,
        iteration_frames: int | None,
    ) -> None:
        from matplotlib import pyplot

        self._groups = groups
        self._references = references
        self._axis = axis
        self._iteration_frames = iteration_frames
        ends = [run.progress[axis][-1] for group in groups for run in group.runs if run.progress]
        if not ends:
            raise UserError("none of the runs has logged anything yet")
        self._end = max(ends)
        self._unit, self._unit_name = _unit(self._end)
        panels = [self._scores, self._values, self._loss, self._speed, self._memory]
        if any(run.evaluations for group in groups for run in group.runs) or any(
            reference.of_evaluations for reference in references
        ):
            panels.insert(1, self._evaluations)
        self._panels = panels
        self.figure, axes = pyplot.subplots(
            2, 3, figsize=(12, 6.6), layout="constrained", sharex=True
        )
        self._axes = list(axes.flat)

    def draw(self, title: str | None) -> None:
        games = sorted({run.game for group in self._groups for run in group.runs})
        self.figure.suptitle(title or ", ".join(games), fontweight="bold")
        for panel, axes in zip(self._panels, self._axes, strict=False):
            panel(axes)
            axes.set_xlim(0, self._end * 1.02 / self._unit)
            axes.set_xlabel(f"{self._axis}{self._unit_name}")
            axes.tick_params(labelbottom=True)
        for axes in self._axes[len(self._panels) :]:
            axes.axis("off")
        handles: dict[str, Any] = {}
        for axes in self.figure.axes:
            for handle, label in zip(*axes.get_legend_handles_labels(), strict=True):
                handles.setdefault(label, handle)
        widest = max(len(label) for label in handles)
        self.figure.legend(
            handles.values(),
            handles.keys(),
            loc="outside lower center",
            ncols=max(1, min(len(handles), 190 // (widest + 12))),
            fontsize="small",
            title=self._note(),
            title_fontsize="small",
        )

    def _note(self) -> str | None:
        """What bars and bands are, where there are any."""
        parts = []
        if any(len(group.runs) == 1 and group.runs[0].evaluations for group in self._groups):
            parts.append("bars: 95 % bootstrap interval of a run's mean")
        if any(len(group.runs) > 1 for group in self._groups):
            parts.append("bands: lowest to highest of the seeds")
        return "; ".join(parts) or None

    def _scores(self, axes: Any) -> None:
        axes.set_title(f"Training: mean score of the last {WINDOW_GAMES} games")
        axes.set_ylabel("raw score")
        self._lines(axes, lambda run: _running_mean(run.episodes, self._axis))
        for number, group in enumerate(self._groups):
            if self._iteration_frames is not None:
                ends, means = _iteration_means(group, self._iteration_frames)
                axes.plot(
                    ends / self._per_frame / self._unit,
                    means,
                    "o",
                    color=_colour(number),
                    markersize=4,
                    label=f"{_named(group)}, mean of each {self._iteration_frames:,} frames",
                )
        self._published(axes, of_evaluations=False)

    def _evaluations(self, axes: Any) -> None:
        axes.set_title("Evaluation: mean score")
        axes.set_ylabel("raw score")
        for number, group in enumerate(self._groups):
            colour = _colour(number)
            runs = [run.evaluations for run in group.runs if run.evaluations]
            trained = [_rows_where(run, run["random_policy"] == 0) for run in runs]
            steps, means = _by_step(trained, self._axis, "mean_score")
            if len(trained) == 1:
                run = trained[0]
                spread = np.abs(np.stack([run["mean_low"], run["mean_high"]]) - run["mean_score"])
                axes.errorbar(
                    steps / self._unit, means[0], spread, fmt="o-", color=colour, markersize=4,
                    capsize=3, elinewidth=1,
                )  # fmt: skip
            elif len(steps):
                axes.plot(steps / self._unit, means.mean(0), "o-", color=colour, markersize=4)
                axes.fill_between(
                    steps / self._unit, means.min(0), means.max(0), color=colour, alpha=0.2, lw=0
                )
            random = [run["mean_score"][run["random_policy"] == 1] for run in runs]
            if random and (scores := np.concatenate(random)).size:
                label = "random policy" if number == 0 else None
                axes.axhline(scores.mean(), color="#888888", ls=":", lw=1.2, label=label)
        self._published(axes, of_evaluations=True)

    def _values(self, axes: Any) -> None:
        axes.set_title("Mean Q (dashed: in held-out states)")
        axes.set_ylabel(f"discounted {self._learned_reward}")
        self._lines(axes, lambda run: _binned(run.progress, self._axis, "mean_q"))
        self._lines(
            axes,
            lambda run: _points(run.evaluations, self._axis, "held_out_max_q"),
            linestyle="--",
        )

    def _loss(self, axes: Any) -> None:
        axes.set_title("Loss")
        axes.set_ylabel("mean of a batch's loss")
        self._lines(axes, lambda run: _binned(run.progress, self._axis, "loss"))

    def _speed(self, axes: Any) -> None:
        axes.set_title("Speed while learning")
        axes.set_ylabel("frames per second")

        def curve(run: Run) -> tuple[Values, Values]:
            # Acting alone, before learning starts, is so fast that nothing else would be seen.
            learns = ~np.isnan(run.progress["loss"]) if run.progress else np.empty(0, bool)
            return _binned(_rows_where(run.progress, learns), self._axis, "frames_per_second")

        self._lines(axes, curve)
        _from_zero(axes)

    def _memory(self, axes: Any) -> None:
        axes.set_title("Memory of the process (dashed: its replay)")
        axes.set_ylabel("GB")
        for column, style in (("resident_bytes", "-"), ("replay_bytes", "--")):
            self._lines(
                axes,
                lambda run, column=column: _binned(run.progress, self._axis, column, 1e-9),
                linestyle=style,
            )
        _from_zero(axes)

    @property
    def _learned_reward(self) -> str:
        """What values are of: rewards are clipped in games, and in images that are played so."""
        settings = [run.settings for group in self._groups for run in group.runs]
        clipped = all(
            each.get("reward_clip") != "none"
            and (each.get("game") is not None or each.get("preprocess") == "atari")
            for each in settings
        )
        return "clipped reward" if clipped else "reward"

    @property
    def _per_frame(self) -> float:
        """Frames in one unit of the axis, for what is known over frames."""
        return 1 if self._axis == "frames" else _FRAMES_PER_STEP

    def _lines(self, axes: Any, curve: Any, **style: Any) -> None:
        """The curve of each group: that of its run, or the mean of its runs' in a band."""
        for number, group in enumerate(self._groups):
            curves = [found for run in group.runs if len((found := curve(run))[0])]
            if not curves:
                continue
            label = _named(group) if not style else None
            if len(curves) == 1:
                x, mean = curves[0]
            else:
                # Where all of them have something to say.
                first = max(x[0] for x, _ in curves)
                last = max(min(x[-1] for x, _ in curves), first)
                x = np.linspace(first, last, _POINTS)
                all_of_them = np.stack([np.interp(x, *found) for found in curves])
                mean = all_of_them.mean(0)
                axes.fill_between(
                    x / self._unit, all_of_them.min(0), all_of_them.max(0),
                    color=_colour(number), alpha=0.2, lw=0,
                )  # fmt: skip
            axes.plot(x / self._unit, mean, color=_colour(number), label=label, **style)

    def _published(self, axes: Any, *, of_evaluations: bool) -> None:
        for number, reference in enumerate(self._references):
            if reference.of_evaluations != of_evaluations:
                continue
            x = reference.frames / self._per_frame
            shown = x <= self._end * 1.02
            colour = _REFERENCE_COLOURS[number % len(_REFERENCE_COLOURS)]
            x = x[shown] / self._unit
            axes.plot(x, reference.mean[shown], "s--", color=colour, markersize=3.5, lw=1,
                      label=reference.label)  # fmt: skip
            axes.fill_between(x, reference.low[shown], reference.high[shown], color=colour,
                              alpha=0.15, lw=0)  # fmt: skip


def _named(group: Group) -> str:
    count = len(group.runs)
    return group.label if count == 1 else f"{group.label} ({count} seeds)"


def _colour(number: int) -> str:
    return _COLOURS[number % len(_COLOURS)]


def _unit(end: float) -> tuple[float, str]:
    if end >= 1e6:
        return 1e6, " (millions)"
    return (1e3, " (thousands)") if end >= 20_000 else (1.0, "")


def _rows_where(columns: Columns, chosen: NDArray[np.bool_]) -> Columns:
    return {name: values[chosen] for name, values in columns.items()}


def _by_step(runs: Sequence[Columns], axis: str, column: str) -> tuple[Values, Values]:
    """Where on the axis every run has been evaluated, and what was found: [runs, points]."""
    if not runs:
        return np.empty(0), np.empty((0, 0))
    common = sorted(set.intersection(*({*run["steps"].tolist()} for run in runs)))
    rows = [[run["steps"].tolist().index(step) for step in common] for run in runs]
    x = np.mean([run[axis][chosen] for run, chosen in zip(runs, rows, strict=True)], axis=0)
    return x, np.stack([run[column][chosen] for run, chosen in zip(runs, rows, strict=True)])


def _running_mean(episodes: Columns, axis: str) -> tuple[Values, Values]:
    if not episodes:
        return np.empty(0), np.empty(0)
    sums = np.concatenate([[0.0], np.cumsum(episodes["score"])])
    last = np.arange(1, len(sums))
    first = np.maximum(last - WINDOW_GAMES, 0)
    return _thinned(episodes[axis], (sums[last] - sums[first]) / (last - first))


def _thinned(x: Values, y: Values) -> tuple[Values, Values]:
    """No more points than can be seen."""
    if len(x) <= 5 * _POINTS:
        return x, y
    kept = np.unique(np.linspace(0, len(x) - 1, 5 * _POINTS).astype(int))
    return x[kept], y[kept]


def _points(columns: Columns, axis: str, column: str, scale: float = 1.0) -> tuple[Values, Values]:
    """The rows that have a value."""
    if not columns:
        return np.empty(0), np.empty(0)
    known = ~np.isnan(columns[column])
    return columns[axis][known], columns[column][known] * scale


def _binned(columns: Columns, axis: str, column: str, scale: float = 1.0) -> tuple[Values, Values]:
    """Means over at most 300 stretches of a run."""
    x, y = _points(columns, axis, column, scale)
    if len(x) <= _POINTS:
        return x, y
    starts = np.unique(np.linspace(0, len(x), _POINTS + 1).astype(int))[:-1]
    counts = np.diff(np.append(starts, len(x)))
    return np.add.reduceat(x, starts) / counts, np.add.reduceat(y, starts) / counts


def _iteration_means(group: Group, iteration_frames: int) -> tuple[Values, Values]:
    """The mean score of all the group's games that ended in each iteration, at its end."""
    frames = np.concatenate([run.episodes["frames"] for run in group.runs if run.episodes])
    scores = np.concatenate([run.episodes["score"] for run in group.runs if run.episodes])
    numbers = np.ceil(frames / iteration_frames).astype(int)
    found = np.unique(numbers)
    means = np.array([scores[numbers == number].mean() for number in found])
    return found * float(iteration_frames), means
