"""Reports, the scores behind them, and the files and terminals that they reach."""

from __future__ import annotations

import csv
import dataclasses
import io
import math
import re
import shutil
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from test_checkpoint_writer import small_disk

from fastdqn.display import LiveDisplay, PlainDisplay, describe
from fastdqn.metrics import (
    Counters,
    CsvWriter,
    Episode,
    EpisodeTracker,
    EvaluationReport,
    Report,
    TensorBoardWriter,
    WandbWriter,
    Writer,
)
from fastdqn.scores import Evaluation, Game


def make_report(**values: Any) -> Report:
    return Report(
        **{
            **dict.fromkeys((f.name for f in dataclasses.fields(Report) if f.name != "folder"), 0),
            "mean_score": math.nan,
            "loss": math.nan,
            "mean_q": 1.23456789,
            "finished": (),
            "evaluations": (),
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
    again = CsvWriter(tmp_path)  # as a run that is resumed
    again.write(make_report(steps=2_000))
    again.close()
    with (tmp_path / "progress.csv").open() as file:
        assert [row["steps"] for row in csv.DictReader(file)] == ["1000", "2000"]


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


def write_many(writer: Writer) -> None:
    for steps in range(1_000):
        writer.write(make_report(steps=steps))


@pytest.mark.parametrize("kind", [CsvWriter, TensorBoardWriter])
@pytest.mark.parametrize("left", [0, 4_096, 8_192, 20_000])
def test_a_full_disk_is_met_by_the_caller(
    kind: type[CsvWriter | TensorBoardWriter], left: int, tmp_path: Path
) -> None:
    """And by no thread beside it, whose traceback nobody could catch."""
    threads = threading.active_count()
    with small_disk(tmp_path / "disk", 1) as disk:
        (disk / "filler").write_bytes(bytes(shutil.disk_usage(disk).free - left))
        writer = kind(disk)
        assert threading.active_count() == threads
        with pytest.raises(OSError, match="No space left on device"):
            write_many(writer)
        with suppress(OSError):  # it may still hold what the disk had no room for
            writer.close()


def test_weights_and_biases_axes_are_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[Any] = []

    class FakeRun:
        def define_metric(self, name: str, step_metric: str) -> None:
            calls.append((name, step_metric))

        def log(self, values: dict[str, float]) -> None:
            calls.append(values)

        def finish(self) -> None:
            calls.append("finish")

    def init(**options: Any) -> FakeRun:
        calls.append(options)
        return FakeRun()

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init))  # type: ignore[arg-type]
    game = Episode(900, 3_600, 0, 3.0, 2, 8, truncated=True)
    writer = WandbWriter("mine", tmp_path, {"seed": 3})
    writer.write(make_report(steps=1_000, finished=(game,), evaluations=(EVALUATED,)))
    writer.close()
    first, *axes, train, finished, evaluated, last = calls
    assert first["project"] == "mine"
    assert (first["dir"], first["config"]) == (str(tmp_path), {"seed": 3})
    assert ("evaluation/*", "evaluation/steps") in axes
    assert train["train/steps"] == 1_000
    assert "train/loss" not in train  # NaN
    assert finished == {"game/steps": 900, "game/score": 3.0, "game/length_frames": 8}
    assert evaluated["evaluation/steps"] == 800
    assert evaluated["evaluation/mean_score"] == 2
    assert last == "finish"


def test_weights_and_biases_are_missed_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fastdqn.config import Config
    from fastdqn.errors import UserError
    from fastdqn.trainer import Trainer

    monkeypatch.setitem(sys.modules, "wandb", None)  # type: ignore[arg-type]
    config = Config.preset("classic", env="CartPole-v1", out=str(tmp_path), wandb="mine")
    with pytest.raises(UserError, match=r"wandb='mine': .* not installed; .*fastdqn\[wandb\]"):
        Trainer(config)
    with pytest.raises(UserError, match="logging needs a folder"):
        Config(wandb="mine", out=None)

    def refuse(**options: Any) -> None:
        raise RuntimeError("no\nlogin")

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=refuse))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="refuses the run: RuntimeError: no login"):
        WandbWriter("mine", tmp_path, {})


def test_evaluations_in_files_and_terminals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer = CsvWriter(tmp_path)
    writer.write(make_report(steps=700))
    assert not (tmp_path / "evaluations.csv").exists()
    random = dataclasses.replace(EVALUATED, steps=0, baseline=True)
    report = make_report(steps=1_000, evaluations=(random, EVALUATED))
    writer.write(report)
    writer.close()
    with (tmp_path / "evaluations.csv").open() as file:
        _, row = csv.DictReader(file)
    expected = {"steps": "800", "games": "2", "mean_score": "2", "held_out_max_q": "0.5"}
    assert {name: row[name] for name in expected} == expected
    with (tmp_path / "evaluation_games.csv").open() as file:
        *_, game = csv.DictReader(file)
    assert list(game.values()) == ["800", "0", "2", "3", "7", "28", "1", "0"]
    with PlainDisplay() as display:
        display.show(report)
    shown = capsys.readouterr().out
    assert "random policy: mean score 2.00 (1.00 to 3.00) of 2 games, 1.0% human-norm" in shown
    assert "evaluation at step 800: mean score 2.00 (1.00 to 3.00) of 2 games" in shown
    assert "held-out max Q 0.5\n" in shown
    console = Console(file=io.StringIO(), force_terminal=True, width=140, color_system=None)
    with LiveDisplay("Breakout", Counters(), console) as live:
        live.show(report)
        live.show(make_report(steps=2_000))
    assert "evaluation at step 800: mean score 2.00" in console.file.getvalue()  # type: ignore[attr-defined]


EVALUATED = EvaluationReport(
    800,
    3_200,
    False,
    Evaluation(
        (Game(1.0, 5, 20, cut=False), Game(3.0, 7, 28, cut=True)), epsilon=0.01, title="Breakout"
    ),
    held_out_max_q=0.5,
    seconds=2.0,
)


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


def test_the_time_left_is_told_by_the_pace_of_learning(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Not by the warm-up's, nor by what was done before a resume."""
    seconds = [0.0]
    monkeypatch.setattr("fastdqn.display.time.monotonic", lambda: seconds[0])
    with PlainDisplay() as display:
        for now, updates, fraction in ((1, 0, 0.25), (2, 0, 0.5), (12, 9, 0.6), (22, 19, 0.7)):
            seconds[0] = now
            display.show(make_report(updates=updates, fraction=fraction))
    assert re.findall(r", (\S+) left", capsys.readouterr().out) == ["?", "?", "0:00:40", "0:00:30"]


@pytest.mark.parametrize("width", [80, 140])
def test_live_display_shows_steps_between_reports(width: int) -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=width, color_system=None)
    counters = Counters()
    with LiveDisplay("Breakout", counters, console) as display:
        display.show(REPORT)
        counters.steps = 12_000
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    for figure in ("Breakout", *FIGURES):
        assert figure in shown


def test_the_description_fits_80_columns_and_says_nothing_twice() -> None:
    actions = [f"ACTION{number}" for number in range(18)]
    text = describe(
        {"num_envs": 1, "game": "Pong", "preset": None, "emulator": "ale-py 0.12.1"}
        | {"action_meanings": actions, "device": "cpu"},
        {"steps": 5, "device": "auto"},
        {},
        {"seed": 0, "frames": None, "budget": 20_000},
    )
    assert text.splitlines() == [
        "played    game=Pong num_envs=1 emulator=ale-py 0.12.1 action_meanings=ACTION0",
        "          ACTION1 ACTION2 ACTION3 ACTION4 ACTION5 ACTION6 ACTION7 ACTION8",
        "          ACTION9 ACTION10 ACTION11 ACTION12 ACTION13 ACTION14 ACTION15 ACTION16",
        "          ACTION17 device=cpu",
        "given     steps=5",
        "defaults  seed=0 frames=none budget=20,000",
    ]
