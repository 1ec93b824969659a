"""Pictures of runs: which curves there are, what is drawn in them, and the command."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import pytest

from fastdqn import plots
from fastdqn.cli_plot import plot_main
from fastdqn.config import Config
from fastdqn.errors import UserError
from fastdqn.trainer import train


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def make_run(folder: Path, level: float, *, evaluated: bool = True, **settings: Any) -> Path:
    """A run of 40,000 steps whose every score is `level`, and whose values are known."""
    folder.mkdir(parents=True)
    config = Config(**{"game": "Breakout", "steps": 40_000, **settings}).resolved()
    (folder / "config.json").write_text(json.dumps(config.to_dict()))
    (folder / "protocol.json").write_text(json.dumps({"game": "Breakout"}))
    steps = range(1_000, 40_001, 1_000)
    progress = [
        {
            "steps": step,
            "frames": 4 * step,
            "loss": "" if step < 5_000 else level / 100,
            "mean_q": "" if step < 5_000 else level * step,
            "frames_per_second": 9_000 if step < 5_000 else 1_000,
            "resident_bytes": 2e9,
            "replay_bytes": 1e9,
        }
        for step in steps
    ]
    write(folder / "progress.csv", progress)
    episodes = [{"steps": 100 * i, "frames": 400 * i, "score": level} for i in range(1, 401)]
    write(folder / "episodes.csv", episodes)
    if evaluated:
        rows = [
            {
                "steps": step,
                "frames": 4 * step,
                "random_policy": int(step == 0),
                "mean_score": level,
                "mean_low": level - 1,
                "mean_high": level + 2,
                "held_out_max_q": level * step,
            }
            for step in (0, 20_000, 40_000)
        ]
        write(folder / "evaluations.csv", rows)
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    """Two seeds of the default, and another learning rate."""
    return [
        make_run(tmp_path / "a", 1.0, seed=0),
        make_run(tmp_path / "b", 3.0, seed=1, out="elsewhere", threads=2),
        make_run(tmp_path / "c", 5.0, learning_rate=3e-4),
    ]


def test_runs_that_differ_in_their_seed_alone_are_one_curve(runs: list[Path]) -> None:
    first, second = plots.group_runs([plots.read_run(run) for run in runs])
    assert [run.folder for run in first.runs] == runs[:2]
    assert (first.label, second.label) == ("default", "learning_rate=0.0003")
    named = plots.group_runs([plots.read_run(run) for run in runs], ["ours", "theirs"])
    assert [group.label for group in named] == ["ours", "theirs"]
    with pytest.raises(UserError, match="labels given: 1, curves: 2"):
        plots.group_runs([plots.read_run(run) for run in runs], ["ours"])


def test_presets_are_recognised(tmp_path: Path) -> None:
    settings = {**Config.preset("dopamine").to_dict(), "game": "Breakout", "steps": 300_000}
    run = plots.read_run(make_run(tmp_path / "a", 1.0, **settings))
    other = plots.read_run(make_run(tmp_path / "b", 1.0))
    assert [group.label for group in plots.group_runs([other, run])] == ["default", "dopamine"]


def drawn(
    paths: list[Path], monkeypatch: pytest.MonkeyPatch, out: Path, **options: Any
) -> dict[str, Any]:
    """The panels of the picture, by the first word of their titles."""
    from matplotlib import pyplot

    kept: list[Any] = []
    monkeypatch.setattr(pyplot, "close", kept.append)
    plots.draw(plots.group_runs([plots.read_run(path) for path in paths]), out, **options)
    monkeypatch.undo()
    (figure,) = kept
    panels = {axes.get_title().split()[0].strip(":"): axes for axes in figure.axes if axes.axison}
    pyplot.close(figure)
    return panels


def lines(axes: Any) -> list[tuple[list[float], list[float]]]:
    return [
        (line.get_xdata().tolist(), line.get_ydata().tolist())
        for line in axes.get_lines()
        if len(line.get_xdata()) > 2 or line.get_marker() in "os"
    ]


def test_curves_are_what_was_logged(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    panels = drawn(runs, monkeypatch, tmp_path / "curves.png")
    (seeds, lone) = lines(panels["Training"])
    assert set(seeds[1]) == {2.0}  # the mean of the two
    assert set(lone[1]) == {5.0}
    assert seeds[0][-1] == lone[0][-1] == 160.0  # thousands of frames
    assert panels["Training"].get_xlabel() == "frames (thousands)"
    bands = panels["Training"].collections
    (band,) = [path.get_extents() for collection in bands for path in collection.get_paths()]
    assert (band.y0, band.y1) == (1.0, 3.0)
    seeds, lone = lines(panels["Evaluation"])[:2]
    assert seeds == ([80.0, 160.0], [2.0, 2.0])
    assert lone == ([80.0, 160.0], [5.0, 5.0])
    assert set(lines(panels["Loss"])[1][1]) == {0.05}
    assert set(lines(panels["Speed"])[1][1]) == {1_000.0}  # of learning, not of the warm-up
    assert {y for line in lines(panels["Memory"]) for y in line[1]} == {1.0, 2.0}
    values = lines(panels["Mean"])
    assert values[1][1][-1] == values[3][1][-1] == 5.0 * 40_000


def test_the_axis_may_be_steps(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    panels = drawn(runs[2:], monkeypatch, tmp_path / "curves.pdf", axis="steps")
    assert lines(panels["Training"])[0][0][-1] == 40.0
    assert panels["Training"].get_xlabel() == "steps (thousands)"


REFERENCE = [
    ("someone", "DQN", "Breakout", 80_000, "train_return_mean_over_seeds", 1.5),
    ("someone", "DQN", "Breakout", 80_000, "train_return_min_seed", 1.0),
    ("someone", "DQN", "Breakout", 80_000, "train_return_max_seed", 2.5),
    ("someone", "DQN", "Breakout", 160_000, "train_return_mean_over_seeds", 2.0),
    ("someone", "DQN", "Breakout", 900_000, "train_return_mean_over_seeds", 9.0),
    ("another", "DQN", "Breakout", 80_000, "eval_return_mean", 4.0),
    ("another", "DQN", "Breakout", 80_000, "eval_return_std", 0.5),
    ("another", "Rainbow", "Breakout", 80_000, "eval_return_mean", 7.0),
    ("another", "DQN", "Pong", 80_000, "eval_return_mean", -20.0),
]


@pytest.fixture
def reference(tmp_path: Path) -> Path:
    names = ("source", "algo", "game", "frames", "metric", "value")
    write(tmp_path / "curves.csv", [dict(zip(names, row, strict=True)) for row in REFERENCE])
    return tmp_path / "curves.csv"


def test_published_curves(
    reference: Path, runs: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = plots.read_references(reference, "breakout", ["DQN"])
    assert [(one.label, one.of_evaluations) for one in found] == [
        ("DQN (someone)", False),
        ("DQN (another)", True),
    ]
    assert found[0].mean.tolist() == [1.5, 2.0, 9.0]
    assert found[0].low.tolist()[0] == 1.0
    assert np.isnan(found[0].low[1])
    assert (found[1].low.tolist(), found[1].high.tolist()) == ([3.5], [4.5])
    panels = drawn(runs, monkeypatch, tmp_path / "curves.png", references=found)
    # Only as far as the runs have come.
    assert ([80.0, 160.0], [1.5, 2.0]) in lines(panels["Training"])
    assert ([80.0], [4.0]) in lines(panels["Evaluation"])
    assert len(plots.read_references(reference, "Breakout")) == 3
    assert len(plots.read_references(reference, "Breakout", source="ANOTHER")) == 2
    with pytest.raises(UserError, match="has no mean of game='Pong', algo=\\['Rainbow'\\]"):
        plots.read_references(reference, "Pong", ["Rainbow"])


def test_means_of_iterations(
    runs: list[Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    panels = drawn(runs[:2], monkeypatch, tmp_path / "c.png", iteration_frames=80_000)
    assert ([80.0, 160.0], [2.0, 2.0]) in lines(panels["Training"])


def test_a_run_without_evaluations_has_no_such_panel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(tmp_path / "a", 1.0, evaluated=False)
    panels = drawn([run], monkeypatch, tmp_path / "curves.png")
    assert set(panels) >= {"Training", "Mean", "Loss", "Speed", "Memory"}
    assert "Evaluation" not in panels


def test_the_command_draws_a_real_run(
    tmp_path: Path, reference: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = Config.preset(
        "classic",
        env="CartPole-v1",
        steps=300,
        learning_starts_steps=50,
        log_period_steps=50,
        evaluation_period_steps=100,
        evaluation_episodes=2,
        out=str(tmp_path / "runs"),
    )
    *_, report = train(config)
    out = tmp_path / "curves.png"
    options = ["--title", "A title", "--reference", str(reference), "--game", "Pong"]
    assert plot_main([str(report.folder), "--out", str(out), *options]) == 0
    assert capsys.readouterr() == (f"1 curve in {out}\n", "")
    picture = matplotlib.image.imread(out)
    assert picture.shape[1] == 1920
    assert 0.02 < (picture[..., :3].min(-1) < 0.9).mean() < 0.5


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "nowhere: not a run's folder: No such file"),
        ([], "the following arguments are required: RUN"),
        (["{run}", "--out", "c.xyz"], "c.xyz: cannot be written"),
        (["{run}", "--out", "no/c.png"], "no/c.png: cannot be written: there is no folder no"),
        (["{run}", "--reference", "nowhere.csv"], "nowhere.csv: cannot be read"),
        (["{run}", "--reference", "{run}/episodes.csv"], "a row lacks source, algo, game"),
        (["{run}", "--iteration-frames", "0"], "--iteration-frames 0: expected 1 or more"),
        (["{run}", "--axis", "hours"], "invalid choice"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    run = make_run(tmp_path / "a", 1.0)
    words = [word.replace("{run}", str(run)) for word in arguments]
    if "--out" not in words:
        words += ["--out", "c.png"]
    assert plot_main(words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fastdqn-plot: ")
    assert message in err
    assert err.count("\n") == 1


def test_damaged_logs_are_one_line(tmp_path: Path) -> None:
    run = make_run(tmp_path / "a", 1.0)
    (run / "episodes.csv").write_text("steps,frames,score\n1,4,many\n")
    with pytest.raises(UserError, match="not a run's log"):
        plots.read_run(run)
    (run / "config.json").write_text("{")
    with pytest.raises(UserError, match="not a run's folder"):
        plots.read_run(run)
    empty = make_run(tmp_path / "b", 1.0)
    (empty / "progress.csv").write_text("steps,frames\n")
    with pytest.raises(UserError, match="logged"):
        plots.draw(plots.group_runs([plots.read_run(empty)]), tmp_path / "c.png")
