"""The command as a person meets it: in its own process, with its output and exit status."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pexpect
import pytest

import fastdqn
from fastdqn.checkpoint import load_agent
from fastdqn.cli import _parse, train_main

COMMAND = [sys.executable, "-W", "error", "-m", "fastdqn"]
SHORT = ["--env", "CartPole-v1", "--log-period-steps", "100", "--learning-starts-steps", "50"]


def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], cwd=cwd, capture_output=True, text=True, timeout=300
    )


def run_folder(output: str, cwd: Path) -> Path:
    found = re.search(r"model and logs are in (\S+)", output)
    assert found, output
    return cwd / found[1]


def test_breakout_from_the_command_line(tmp_path: Path) -> None:
    done = run(
        *("--game", "breakout", "--steps", "300", "--log-period-steps", "100", "--threads", "1"),
        *("--replay-capacity", "2000", "--batch-size", "8"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for shown in (
        r"preset default: fastdqn's own",
        r"played +game=Breakout",
        r"action_meanings=NOOP FIRE\s+RIGHT LEFT",
        r"frame_skip=4",
        r"sticky_actions=0\.0",
        r"life_loss=terminal",
        r"max_episode_frames=108,000",
        r"device=(cpu|cuda)",
        r"parameters=1,686,180",
        r"replay_bytes=\d\d\d,\d\d\d",  # compressed: 14 MB raw
        r"given .*steps=300.*defaults",
        r"defaults .*discount=0\.99",
        r"step 300 \(100\.0%.*loss \d",
        r"done at step 300; model and logs are in runs/Breakout-0-",
    ):
        assert re.search(shown, done.stdout, re.DOTALL), (shown, done.stdout)
    start = done.stdout[: done.stdout.index("  to runs/")]
    assert max(map(len, start.splitlines())) <= 80
    names = re.findall(r"\b(\w+)=", start)
    assert len(names) == len({*names})  # nothing is said twice
    assert load_agent(run_folder(done.stdout, tmp_path)).num_actions == 4


def test_a_preset_from_the_command_line(tmp_path: Path) -> None:
    done = run(
        *("--preset", "nature", "--game", "Pong", "--steps", "40", "--learning-starts-steps", "20"),
        *("--replay-capacity", "1000", "--threads", "1", "--out", "none"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    given, preset, _ = re.split(r"\n(?:preset|defaults)  ", done.stdout)
    assert "optimizer=rmsprop_centered" in preset
    assert "learning_starts_steps=20" in given
    assert "Frames are resized by averaging areas; there bilinearly." in given
    assert "nothing is written" in done.stdout
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--game", "Brekout"], "Breakout"),
        (["--env", "CartPol-v1"], "CartPole"),
        ([], "no game: give one"),
        (["--game", "Breakout", "--replay-capacity", "10000000000000"], "would fit"),
        (["--game", "Breakout", "--device", "tpu"], "device='tpu': expected auto, cpu, cuda"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    tmp_path: Path, arguments: list[str], message: str
) -> None:
    done = run(*arguments, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("fastdqn-train: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("word", ["50000", "50_000", "50,000", "5e4", "5E4", "0.5e5"])
def test_large_numbers_as_people_write_them(word: str) -> None:
    config, resume = _parse(["--env", "CartPole-v1", "--steps", word])
    assert (config.steps, resume) == (50_000, None)


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exited:
        train_main(["--version"])
    assert exited.value.code == 0
    assert capsys.readouterr().out == f"fastdqn {fastdqn.__version__}\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--stepz", "4"], "Unrecognized options: --stepz, 4; did you mean --steps?"),
        (["Breakout"], "Unrecognized options: Breakout"),
        (["--steps"], "Missing value for argument"),
        (["--steps", "abc"], "--steps: expected a whole number or none, got 'abc'"),
        (["--steps", "5,00"], "--steps: expected a whole number or none, got '5,00'"),
        (["--steps", "1.5e0"], "--steps: expected a whole number or none, got '1.5e0'"),
        (["--steps", "1e999"], "--steps: expected a whole number or none, got '1e999'"),
        (["--steps", "-1"], "steps=-1: expected 1 or more"),
        (["--batch-size", "1.5"], "--batch-size: expected a whole number, got '1.5'"),
        (["--learning-rate", "nan"], "learning_rate=nan: expected a finite number"),
        (["--loss", "foo"], "'foo'"),
        (["--preset", "natre"], "did you mean nature?"),
        (["--preset=natre"], "did you mean nature?"),
        (["--preset"], "expected one of default, nature"),
    ],
)
def test_a_wrong_command_line_is_one_line(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train_main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("fastdqn-train: ")
    assert message in err
    assert err.count("\n") == 1


def test_help_is_quick_and_names_every_setting(tmp_path: Path) -> None:
    import dataclasses

    from fastdqn.config import Config

    code = (
        "import sys; from fastdqn.cli import _parse, train_main\n"
        "try: train_main(['--help'])\n"
        "except SystemExit as end: assert not end.code\n"
        "print([m for m in ('torch', 'gymnasium', 'ale_py', 'tensorboard') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")
    *text, loaded = done.stdout.splitlines()
    assert loaded == "[]"
    for field in dataclasses.fields(Config):
        flag = f"--{field.name.replace('_', '-')}"
        found = re.search(rf"{flag}[ ,]", "\n".join(text))
        assert bool(found) == (field.name != "epsilon"), flag


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_the_run_with_everything_saved(
    tmp_path: Path, number: int, status: int
) -> None:
    process = subprocess.Popen(
        [*COMMAND, *SHORT], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("step 200"):
                break
        process.send_signal(number)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == status
    assert err == ""
    steps = re.search(r"stopped at step ([\d,]+); model and logs are in", out)
    assert steps
    folder = run_folder(out, tmp_path)
    load_agent(folder)
    last = (folder / "progress.csv").read_text().splitlines()[-1]
    assert last.split(",")[0] == steps[1].replace(",", "")


def test_a_second_signal_ends_it_at_once(tmp_path: Path) -> None:
    code = (
        "import sys, time, fastdqn.trainer as t\n"
        "t.Trainer._close = lambda self: time.sleep(100)  # a disk that hangs\n"
        "from fastdqn.cli import _parse, train_main\n"
        "sys.exit(train_main(sys.argv[1:]))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, *SHORT, "--out", "none"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            while not process.stdout.readline().startswith("step 200"):
                pass
            process.send_signal(signal.SIGINT)
            time.sleep(1)
            assert process.poll() is None
            process.send_signal(signal.SIGINT)
            assert process.wait(timeout=10) == 130
        finally:
            process.kill()


def test_the_live_display_in_a_terminal(tmp_path: Path) -> None:
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    child = pexpect.spawn(
        COMMAND[0],
        [*COMMAND[1:], *SHORT],
        cwd=str(tmp_path),
        env=environment,
        dimensions=(40, 120),
        timeout=60,
        encoding="utf-8",
    )
    child.expect("nothing|  to runs/CartPole")
    child.expect("frames/s")
    child.expect("left")
    child.sendintr()
    child.expect(r"stopped at step [\d,]+; model and logs are in runs/")
    child.expect(pexpect.EOF)
    child.close()
    assert child.exitstatus == 130
