"""Reports, the scores behind them, and the files and terminals that they reach."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from fastdqn.display import LiveDisplay, PlainDisplay, describe
from fastdqn.metrics import (
    Counters,
    CsvWriter,
    Episode,
    EpisodeTracker,
    Report,
    TensorBoardWriter,
)


def make_report(**values: Any) -> Report:
    return Report(
        **{
            **dict.fromkeys((f.name for f in dataclasses.fields(Report) if f.name != "folder"), 0),
            "mean_score": math.nan,
            "loss": math.nan,
            "mean_q": 1.23456789,
            "finished": (),
            **values,
        }
    )


def outcome(rewards: list[float], terminated: list[int], truncated: list[int]) -> Any:
    return SimpleNamespace(
        rewards=np.array(rewards, float),
        terminated=np.array(terminated, bool),
        truncated=np.array(truncated, bool),
        frames_used=np.full(len(rewards), 4),
    )


def test_scores_are_per_game_and_per_environment() -> None:
    tracker, counters = EpisodeTracker(2), Counters()
    assert math.isnan(tracker.mean_score)
    for rewards, terminated, truncated, ended in [
        ([1, 10], [0, 0], [0, 0], []),
        ([2, 20], [1, 0], [0, 0], [0]),
        ([4, 40], [0, 0], [1, 1], [0, 1]),
        ([8, 80], [1, 1], [1, 0], [0, 1]),
    ]:
        counters.steps += 2
        counters.frames += 8
        step = outcome(rewards, terminated, truncated)
        assert tracker.step(step, counters).tolist() == ended
    assert tracker.take_finished() == (
        Episode(4, 16, 0, 3.0, 2, 8, truncated=False),
        Episode(6, 24, 0, 4.0, 1, 4, truncated=True),
        Episode(6, 24, 1, 70.0, 3, 12, truncated=True),
        Episode(8, 32, 0, 8.0, 1, 4, truncated=False),  # over and at the limit: over
        Episode(8, 32, 1, 80.0, 1, 4, truncated=False),
    )
    assert tracker.take_finished() == ()
    assert counters.episodes == 5
    assert tracker.mean_score == (3 + 4 + 70 + 8 + 80) / 5


def test_only_the_last_100_scores_count() -> None:
    tracker = EpisodeTracker(1)
    for score in range(150):
        tracker.step(outcome([score], [1], [0]), Counters())
    assert tracker.mean_score == sum(range(50, 150)) / 100


def test_csv_files(tmp_path: Path) -> None:
    writer = CsvWriter(tmp_path)
    game = Episode(4, 16, 0, 3.0, 2, 8, truncated=True)
    writer.write(make_report(steps=1_000, frames=12_345_678, finished=(game,)))
    with (tmp_path / "progress.csv").open() as file:  # before it is closed
        (row,) = csv.DictReader(file)
    expected = {"steps": "1000", "frames": "12345678", "mean_q": "1.234568", "loss": ""}
    assert {name: row[name] for name in expected} == expected
    assert {"updates", "epsilon", "frames_per_second", "resident_bytes"} <= row.keys()
    with (tmp_path / "episodes.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert list(row.values()) == ["4", "16", "0", "3", "2", "8", "1"]
    writer.close()
    with pytest.raises(FileExistsError):
        CsvWriter(tmp_path)


def test_tensorboards_axis_is_steps(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    writer = TensorBoardWriter(tmp_path)
    game = Episode(900, 3_600, 0, 3.0, 2, 8, truncated=True)
    writer.write(make_report(steps=1_000, frames=4_000, finished=(game,)))
    writer.write(make_report(steps=2_000, frames=8_000))
    writer.close()
    events = EventAccumulator(str(tmp_path))
    events.Reload()
    assert "train/loss" not in events.Tags()["scalars"]  # NaN throughout
    frames = events.Scalars("train/frames")
    assert [(event.step, event.value) for event in frames] == [(1_000, 4_000), (2_000, 8_000)]
    assert [(event.step, event.value) for event in events.Scalars("game/score")] == [(900, 3)]


REPORT = make_report(
    steps=12_000,
    frames=48_000,
    episodes=31,
    epsilon=0.95,
    mean_score=1.5,
    frames_per_second=1234,
    resident_bytes=1.5e9,
    replay_bytes=4e8,
    replay_full_bytes=1.77e9,
    replay_frame_bytes=7088.6,
    replay_median_age=28_000,
    replay_oldest_age=56_001,
    fraction=0.012,
)
FIGURES = [
    *("step 12,000", "1.2%", "48,000", "games 31", "epsilon 0.950", "scores 1.50", "loss -"),
    *("mean Q 1.23", "frames/s 1,234", "updates/s 0.0", "memory 1.50 GB", "replay 0.40 of 1.77 GB"),
    *("bytes/observation 7,089", "median age 28,000", "oldest 56,001"),
]


def test_plain_display_is_a_line_a_report(capsys: pytest.CaptureFixture[str]) -> None:
    with PlainDisplay() as display:
        display.show(REPORT)
    shown = capsys.readouterr().out
    assert shown.count("\n") == 1
    for figure in FIGURES:
        assert figure in shown


def test_live_display_shows_steps_between_reports() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=140, color_system=None)
    counters = Counters()
    with LiveDisplay("Breakout", counters, console) as display:
        display.show(REPORT)
        counters.steps = 12_000
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for figure in ("Breakout", *FIGURES):
        assert figure in shown


def test_the_description_shows_what_differs_from_the_defaults_first() -> None:
    text = describe(
        {"game": "Pong", "action_meanings": ["NOOP", "FIRE"], "replay_bytes": 7_000_000},
        {"steps": 5, "seed": 0, "frames": 20_000},
        {"steps": None, "seed": 0, "frames": None},
    )
    assert text.splitlines() == [
        "  game             Pong",
        "  action_meanings  NOOP FIRE",
        "  replay_bytes     7,000,000",
        "  settings         steps=5 frames=20,000",
        "  defaults         seed=0",
    ]
