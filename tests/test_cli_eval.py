"""`fastdqn-eval` as a person meets it."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from fastdqn.checkpoint import load_agent
from fastdqn.cli_eval import eval_main
from fastdqn.config import Config
from fastdqn.evaluation import evaluate
from fastdqn.trainer import train

COMMAND = [
    *(sys.executable, "-W", "error", "-c"),
    "import sys; from fastdqn.cli_eval import eval_main; sys.exit(eval_main(sys.argv[1:]))",
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = str(tmp_path_factory.mktemp("runs"))
    settings: dict[str, dict[str, Any]] = {
        "cartpole": {"env": "CartPole-v1", "steps": 100, "hidden_units": (8,)},
        "breakout": {"game": "Breakout", "steps": 20, "replay_capacity": 500, "batch_size": 2},
    }
    found = {}
    for name, values in settings.items():
        config = Config(**values, learning_starts_steps=16, out=out, threads=1)
        (report,) = train(config)
        assert report.folder is not None
        found[name] = report.folder
    return found


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    status = eval_main([str(argument) for argument in arguments])
    return status, *capsys.readouterr()


def test_a_table(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    settings = ("--episodes", 3, "--epsilon", 1, "--seed", 5)
    status, out, err = run(capsys, runs["breakout"], *settings)
    assert (status, err) == (0, "")
    expected = evaluate(load_agent(runs["breakout"]), episodes=3, epsilon=1.0, seed=5)
    first = out.splitlines()[0]
    assert first.startswith("Breakout: 3 games, epsilon 1, seed 5, frame_skip 4, sticky_actions 0")
    for number, game in enumerate(expected.games, 1):
        assert re.search(rf"^ +{number} +{game.score:g} +{game.steps} +{game.frames:,}$", out, re.M)
    assert re.search(rf"^3 games, {sum(g.frames for g in expected.games):,} frames$", out, re.M)
    low, high = expected.interval
    assert f"(95 % interval {low:,.4g} to {high:,.4g})" in out
    assert re.search(rf"^human-normalised +{expected.human_normalised:.1%} .*Wang et al", out, re.M)


def test_limits_are_marked(runs: dict[str, Path], capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = run(
        capsys, runs["breakout"], "--max-episode-frames", 80, "--frames", 200, "--epsilon", 0
    )
    assert status == 0
    games = [line for line in out.splitlines() if re.match(r" +\d ", line)]
    assert len(games) >= 3
    assert all(line.endswith("cut at its limit") for line in games[:-1])
    assert games[-1].endswith("interrupted")
    assert "not counted: 1" in out
    # Some frames of each game's 80 are no-ops.
    assert re.search(rf"^{len(games) - 1} games, 20\d frames$", out, re.M), out


def test_json_and_csv(
    runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    games = tmp_path / "games.csv"
    model = runs["cartpole"] / "model.safetensors"
    status, out, _ = run(capsys, model, "--episodes", 3, "--json", "--csv", games)
    assert status == 0
    found = json.loads(out)
    expected = evaluate(load_agent(model), episodes=3)
    assert found["games"] == [vars(game) for game in expected.games]
    assert (found["mean"], found["episodes"]) == (expected.mean, 3)
    assert found["human_normalised"] is None
    with games.open() as file:
        rows = list(csv.DictReader(file))
    assert [float(row["score"]) for row in rows] == expected.scores.tolist()
    assert [row["game"] for row in rows] == ["1", "2", "3"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--episodes", "0"], "episodes=0: expected 1 or more"),
        (["--episodes", "none"], "without one of them it never ends"),
        (["--frames", "x"], "--frames: expected a whole number or none, got 'x'"),
        (["--epsilon", "2"], "epsilon=2.0: expected a number from 0 to 1"),
        (["--seed", "-1"], "--seed -1: expected 0 or more"),
        (["--device", "tpu"], "expected auto, cpu"),
        (["--epsiloon", "2"], "unrecognized arguments: --epsiloon 2"),
        (["--csv", "/nowhere/games.csv", "--episodes", "1"], "/nowhere/games.csv: cannot be"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    runs: dict[str, Path],
    arguments: list[str],
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    status, _, err = run(capsys, runs["cartpole"], *arguments)
    assert status == 2
    assert err.startswith("fastdqn-eval: ")
    assert message in err
    assert err.count("\n") == 1


def test_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(capsys, tmp_path / "runs")[0::2] == (
        2,
        f"fastdqn-eval: {tmp_path / 'runs'}: no such model; expected a run's folder, with "
        "its model.safetensors, or that file\n",
    )
    assert run(capsys)[0] == 2


def test_a_scripts_own_environment_is_for_scripts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    import gymnasium

    config = Config.preset("classic", steps=20, learning_starts_steps=10, out=str(tmp_path))
    (report,) = train(config, env_fn=lambda: gymnasium.make("CartPole-v1"))
    status, _, err = run(capsys, report.folder)
    assert status == 2
    assert "in a script too, with fastdqn.evaluate(agent, env_fn=...)" in err


def test_a_video(runs: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    video = tmp_path / "game.mp4"
    status, out, err = run(capsys, runs["breakout"], "--video", video, "--frames", 60)
    assert (status, err) == (0, "")
    assert "no game was played to its end" in out
    assert video.stat().st_size > 2_000
    status, _, err = run(capsys, runs["breakout"], "--video", tmp_path / "game.avi")
    assert (status, err.count("\n")) == (2, 1)


def test_the_example_plays_a_game(tmp_path: Path) -> None:
    settings = {"game": "Breakout", "steps": 20, "learning_starts_steps": 16, "batch_size": 2}
    config = Config(**settings, replay_capacity=500, out=str(tmp_path), max_episode_frames=200)
    (report,) = train(config)
    example = Path(__file__).parent.parent / "examples" / "play.py"
    done = subprocess.run(
        [sys.executable, "-W", "error", str(example), str(report.folder)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"Breakout: \d+; the last values were \[.*\]\n", done.stdout)


def test_ctrl_c_ends_it_with_what_was_played(runs: dict[str, Path]) -> None:
    with subprocess.Popen(
        [*COMMAND, str(runs["cartpole"]), "--episodes", "10000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            while not process.stdout.readline().startswith("    20 "):
                pass
            process.send_signal(signal.SIGINT)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, err) == (130, "")
    assert re.search(r"^[\d,]+ games, [\d,]+ frames$", out, re.M)
    assert "mean" in out
