"""What a run reports about itself, and the files it reports to.

Memory stays flat however long a run is: nothing is kept but the last 100 scores and what has
happened since the last report. Scores are raw and per game.
"""

from __future__ import annotations

import csv
import math
import time
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TextIO

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "Counters",
    "CsvWriter",
    "Episode",
    "EpisodeTracker",
    "Report",
    "StepOutcome",
    "TensorBoardWriter",
    "Writer",
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
    """What the replay memory's part of that should be, by the frames that it holds."""
    replay_full_bytes: int
    """What it takes once it is full."""
    fraction: float
    """Of the run that is done, by whichever end is nearest."""
    finished: tuple[Episode, ...] = field(repr=False)
    """Games that have ended since the last report."""
    folder: Path | None = None
    """Where the run's files are."""

    def scalars(self) -> dict[str, float]:
        """Every number by name."""
        return {name: getattr(self, name) for name in _SCALARS}


_SCALARS = tuple(item.name for item in fields(Report) if item.name not in ("finished", "folder"))


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
        ended = np.flatnonzero(outcome.terminated | outcome.truncated)
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

    Files that are there are gone on with.
    """

    def __init__(self, folder: Path) -> None:
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
        for file in self._files:
            file.flush()

    def close(self) -> None:
        """See `Writer`."""
        for file in self._files:
            file.close()


def _cell(value: float) -> str:
    if isinstance(value, float):
        return "" if math.isnan(value) else f"{value:.7g}"
    return str(int(value))


class TensorBoardWriter:
    """TensorBoard's event file. The axis is steps; frames are a curve of their own."""

    def __init__(self, folder: Path) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._file = EventFileWriter(str(folder))

    def write(self, report: Report) -> None:
        """See `Writer`."""
        scalars = report.scalars()
        del scalars["steps"]
        self._add(report.steps, "train", scalars)
        for episode in report.finished:
            figures = {"score": episode.score, "length_frames": episode.length_frames}
            self._add(episode.steps, "game", figures)
        self._file.flush()

    def _add(self, step: int, group: str, scalars: Mapping[str, float]) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=f"{group}/{name}", simple_value=value)
            for name, value in scalars.items()
            if not math.isnan(value)
        ]
        self._file.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def close(self) -> None:
        """See `Writer`."""
        self._file.close()
