"""What a run reports about itself, and the files it reports to.

Memory stays flat however long a run is: nothing is kept but the last 100 scores and what has
happened since the last report. Scores are raw and per game.
"""

from __future__ import annotations

import csv
import importlib
import math
import os
import socket
import time
from collections import deque
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol, TextIO

import numpy as np
from numpy.typing import NDArray

from fastdqn.errors import UserError
from fastdqn.scores import Evaluation

__all__ = [
    "Counters",
    "CsvWriter",
    "Episode",
    "EpisodeTracker",
    "EvaluationReport",
    "Report",
    "StepOutcome",
    "TensorBoardWriter",
    "WandbWriter",
    "Writer",
    "import_wandb",
]

SCORE_WINDOW_EPISODES = 100


@dataclass
class Counters:
    """How far a run has come."""

    steps: int = 0
    frames: int = 0
    updates: int = 0
    target_copies: int = 0
    episodes: int = 0


class Episode(NamedTuple):
    """One finished game."""

    steps: int
    """The run's steps when it ended."""
    frames: int
    """The run's frames when it ended."""
    env: int
    score: float
    """The sum of its raw rewards."""
    length_steps: int
    length_frames: int
    truncated: bool
    """It was cut at a limit, not over."""


@dataclass(frozen=True)
class EvaluationReport:
    """An evaluation of the run's agent, or of a random policy before it."""

    steps: int
    """The run's steps when its weights were copied."""
    frames: int
    """The run's frames then."""
    baseline: bool
    """A random policy's."""
    evaluation: Evaluation
    held_out_max_q: float
    """Mean over the held-out states of the best action's value; NaN where there are none."""
    seconds: float
    """That it took."""

    def scalars(self) -> dict[str, float]:
        """What `evaluations.csv` has of it, by name; NaN where there is nothing to say."""
        evaluation, (low, high) = self.evaluation, self.evaluation.interval
        scaled = evaluation.human_normalised
        return {
            "steps": self.steps,
            "frames": self.frames,
            "random_policy": int(self.baseline),
            "epsilon": evaluation.epsilon,
            "games": len(evaluation.counted),
            "mean_score": evaluation.mean,
            "median_score": evaluation.median,
            "standard_deviation": evaluation.standard_deviation,
            "mean_low": low,
            "mean_high": high,
            "human_normalised": math.nan if scaled is None else scaled,
            "held_out_max_q": self.held_out_max_q,
            "seconds": self.seconds,
        }


@dataclass(frozen=True, kw_only=True)
class Report:
    """The state of a run at one of its steps. Means are over what came since the last report."""

    steps: int
    frames: int
    updates: int
    target_copies: int
    episodes: int
    """Games finished."""
    epsilon: float
    """Probability of a random action."""
    mean_score: float
    """Mean raw return of the last 100 games; NaN before the first has ended."""
    loss: float
    """Mean loss; NaN without an update."""
    mean_q: float
    """Mean value of the actions in the batches; NaN without an update."""
    seconds: float
    """Of training, over all processes of the run."""
    frames_per_second: float
    """Since the last report, of this process."""
    updates_per_second: float
    """Since the last report, of this process."""
    batch_wait: float
    """Share of the time spent learning, on the host's clock, that was spent waiting for batches to
    be gathered; NaN without an update."""
    resident_bytes: int
    """Memory that the process holds."""
    replay_bytes: int
    """What the replay memory holds, in memory or in its files."""
    replay_full_bytes: int
    """What it comes to hold once it is full, if what is still to come is like what there is."""
    replay_frame_bytes: float
    """What an observation in it takes by itself, on average."""
    replay_median_age: int
    """Observations stored since the one that half of the replay memory is older than."""
    replay_oldest_age: int
    """Observations stored since the oldest that there is."""
    fraction: float
    """Of the run that is done, by whichever end is nearest."""
    finished: tuple[Episode, ...] = field(repr=False)
    """Games that have ended since the last report."""
    evaluations: tuple[EvaluationReport, ...] = field(repr=False, default=())
    """Evaluations that have ended since the last report; each names the step it belongs to."""
    folder: Path | None = None
    """Where the run's files are."""

    def scalars(self) -> dict[str, float]:
        """Every number by name."""
        return {name: getattr(self, name) for name in _SCALARS}


_NO_NUMBERS = ("finished", "evaluations", "folder")
_SCALARS = tuple(item.name for item in fields(Report) if item.name not in _NO_NUMBERS)


class StepOutcome(Protocol):
    """What the tracker needs of a step's result; arrays over all environments."""

    @property
    def rewards(self) -> NDArray[np.float64]: ...
    @property
    def terminated(self) -> NDArray[np.bool_]: ...
    @property
    def truncated(self) -> NDArray[np.bool_]: ...
    @property
    def frames_used(self) -> NDArray[np.int64]: ...


_NONE = np.empty(0, np.int64)


class EpisodeTracker:
    """Follows each environment's game and keeps the scores of the last 100."""

    def __init__(self, num_envs: int) -> None:
        self._scores = np.zeros(num_envs)
        self._steps = np.zeros(num_envs, np.int64)
        self._frames = np.zeros(num_envs, np.int64)
        self._last: deque[float] = deque(maxlen=SCORE_WINDOW_EPISODES)
        self._finished: list[Episode] = []

    def step(self, outcome: StepOutcome, counters: Counters) -> NDArray[np.int64]:
        """Take one step of every environment into account; returns those whose game ended."""
        self._scores += outcome.rewards
        self._steps += 1
        self._frames += outcome.frames_used
        over = outcome.terminated | outcome.truncated
        if not over.any():
            return _NONE
        ended = np.flatnonzero(over)
        for env in ended:
            counters.episodes += 1
            self._last.append(float(self._scores[env]))
            self._finished.append(
                Episode(
                    counters.steps,
                    counters.frames,
                    int(env),
                    float(self._scores[env]),
                    int(self._steps[env]),
                    int(self._frames[env]),
                    not outcome.terminated[env],
                )
            )
        for running in (self._scores, self._steps, self._frames):
            running[ended] = 0
        return ended

    def save_state(self) -> dict[str, Any]:
        """The open games and the last scores, to go on from."""
        return {
            "scores": self._scores.copy(),
            "steps": self._steps.copy(),
            "frames": self._frames.copy(),
            "last": list(self._last),
            "finished": [list(episode) for episode in self._finished],
        }

    def load_state(self, state: Mapping[str, Any], *, open_games: bool) -> None:
        """Goes on from such a state; without `open_games`, every environment is in a new one."""
        if open_games:
            self._scores[:] = state["scores"]
            self._steps[:] = state["steps"]
            self._frames[:] = state["frames"]
        self._last.extend(state["last"])
        self._finished = [Episode(*episode) for episode in state["finished"]]

    @property
    def mean_score(self) -> float:
        """Mean of the last 100 games' scores; NaN before the first has ended."""
        return sum(self._last) / len(self._last) if self._last else math.nan

    def take_finished(self) -> tuple[Episode, ...]:
        """Games that have ended since the last call."""
        finished, self._finished = tuple(self._finished), []
        return finished


class Writer(Protocol):
    """Somewhere that reports go."""

    def write(self, report: Report) -> None:
        """Take one report."""

    def close(self) -> None:
        """No more reports follow."""


class CsvWriter:
    """`progress.csv`, a row a report, and `episodes.csv`, a row a game. NaN is an empty cell.

    With the first evaluation come `evaluations.csv`, a row for each, and `evaluation_games.csv`, a
    row for each of their games. Files that are there are gone on with.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._evaluations: Any = None
        self._evaluation_games: Any = None
        self._files: list[TextIO] = []
        self._progress = self._open(folder / "progress.csv", _SCALARS)
        self._episodes = self._open(folder / "episodes.csv", Episode._fields)

    def _open(self, path: Path, header: tuple[str, ...]) -> Any:
        file = path.open("a", newline="", encoding="utf-8")
        self._files.append(file)
        writer = csv.writer(file)
        if file.tell() == 0:
            writer.writerow(header)
        return writer

    def write(self, report: Report) -> None:
        """See `Writer`. Rows reach the file at once."""
        self._progress.writerow(_cell(value) for value in report.scalars().values())
        self._episodes.writerows((_cell(value) for value in episode) for episode in report.finished)
        for evaluation in report.evaluations:
            self._write_evaluation(evaluation)
        for file in self._files:
            file.flush()

    def _write_evaluation(self, report: EvaluationReport) -> None:
        scalars = report.scalars()
        if self._evaluations is None:
            self._evaluations = self._open(self._folder / "evaluations.csv", tuple(scalars))
            self._evaluation_games = self._open(
                self._folder / "evaluation_games.csv",
                ("steps", "random_policy", "game", "score", "length_steps", "length_frames", "cut",
                 "interrupted"),
            )  # fmt: skip
        self._evaluations.writerow(_cell(value) for value in scalars.values())
        for number, game in enumerate(report.evaluation.games, 1):
            row = (report.steps, report.baseline, number, game.score, game.steps, game.frames)
            self._evaluation_games.writerow(
                _cell(value) for value in (*row, game.cut, game.interrupted)
            )

    def close(self) -> None:
        """See `Writer`."""
        with ExitStack() as files:  # each of them, whatever the others meet
            for file in self._files:
                files.callback(file.close)


def _cell(value: float) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.7g}"
    return str(int(value))


class TensorBoardWriter:
    """TensorBoard's event file. The axis is steps; frames are a curve of their own.

    It is written where it is called: TensorBoard's own `EventFileWriter` has a thread for it, and
    what a full disk raises there ends in a traceback that nobody can catch.
    """

    def __init__(self, folder: Path) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        self._file = RecordWriter(_new_event_file(folder))
        self._file.write(
            Event(wall_time=time.time(), file_version="brain.Event:2").SerializeToString()
        )

    def write(self, report: Report) -> None:
        """See `Writer`."""
        scalars = report.scalars()
        del scalars["steps"]
        self._add(report.steps, "train", scalars)
        for episode in report.finished:
            figures = {"score": episode.score, "length_frames": episode.length_frames}
            self._add(episode.steps, "game", figures)
        for evaluation in report.evaluations:
            scalars = evaluation.scalars()
            group = "random_policy" if scalars.pop("random_policy") else "evaluation"
            del scalars["steps"]
            self._add(evaluation.steps, group, scalars)
        self._file.flush()

    def _add(self, step: int, group: str, scalars: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=f"{group}/{name}", simple_value=value)
            for name, value in scalars.items()
            if not math.isnan(value)
        ]
        event = Event(wall_time=time.time(), step=step, summary=Summary(value=values))
        self._file.write(event.SerializeToString())

    def close(self) -> None:
        """See `Writer`."""
        self._file.close()


def _new_event_file(folder: Path) -> BinaryIO:
    """Named as TensorBoard looks for it, and after every other: it reads them in this order."""
    number = 0
    while True:
        name = f"events.out.tfevents.{int(time.time()):010d}.{socket.gethostname()}"
        with suppress(FileExistsError):
            return (folder / f"{name}.{os.getpid()}.{number}").open("xb")
        number += 1


class WandbWriter:
    """A run at Weights & Biases, in the given project. Its axes are steps, as TensorBoard's are.

    Raises `UserError` where its package is not installed or refuses the run.
    """

    def __init__(self, project: str, folder: Path, settings: Mapping[str, Any]) -> None:
        wandb = import_wandb(project)
        try:
            self._run = wandb.init(
                project=project, name=folder.name, dir=str(folder), config=dict(settings)
            )
        except Exception as error:  # its own kinds: no login, no network, a wrong name
            what = " ".join(f"{type(error).__name__}: {error}".split())
            raise UserError(
                f"wandb={project!r}: Weights & Biases refuses the run: {what}"
            ) from None
        # Evaluations arrive after the steps that they belong to, so each group has its own axis.
        for group in ("train", "game", "evaluation", "random_policy"):
            self._run.define_metric(f"{group}/*", step_metric=f"{group}/steps")

    def write(self, report: Report) -> None:
        """See `Writer`."""
        self._log("train", report.scalars())
        for episode in report.finished:
            self._log(
                "game",
                {
                    "steps": episode.steps,
                    "score": episode.score,
                    "length_frames": episode.length_frames,
                },
            )
        for evaluation in report.evaluations:
            scalars = evaluation.scalars()
            self._log("random_policy" if scalars.pop("random_policy") else "evaluation", scalars)

    def _log(self, group: str, scalars: Mapping[str, float]) -> None:
        known = {name: value for name, value in scalars.items() if not math.isnan(value)}
        self._run.log({f"{group}/{name}": value for name, value in known.items()})

    def close(self) -> None:
        """See `Writer`."""
        self._run.finish()


def import_wandb(project: str) -> Any:
    """The package wandb. Raises `UserError` where it is not installed."""
    try:
        return importlib.import_module("wandb")
    except ImportError:
        raise UserError(
            f"wandb={project!r}: the package wandb is not installed; install it with: "
            'pip install "fastdqn[wandb]"'
        ) from None
