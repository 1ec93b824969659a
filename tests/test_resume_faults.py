"""What a person meets who resumes after a fault: one clear line, status 2, and nothing lost."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from test_checkpoint_writer import change_manifest, flip, small_disk
from test_replay_files import crc_32c
from test_resume import breakout, cartpole, check_same, finish

from fastdqn import command, run_state
from fastdqn.cli import train_main
from fastdqn.replay import ReplayMemory
from fastdqn.resuming import resumed_trainer
from fastdqn.run_state import Checkpoint, checkpoints_of
from fastdqn.trainer import Trainer

SIGNALS = 24
OFTEN = {"checkpoint_period_steps": 10, "num_envs": 1, "steps": 6_000, "train_period_steps": 40}


class Command:
    """`fastdqn-train` in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def refusal(self, *arguments: str | Path) -> str:
        """The one line of a command that is refused."""
        status = train_main([str(argument) for argument in arguments])
        out, err = self._capsys.readouterr()
        assert status == 2, out + err
        assert err.startswith("fastdqn-train: ")
        assert err.count("\n") == 1, err
        assert "Traceback" not in err
        return err

    def output(self, *arguments: str | Path) -> str:
        """What a command that succeeds prints."""
        status = train_main([str(argument) for argument in arguments])
        out, err = self._capsys.readouterr()
        assert (status, err) == (0, ""), out + err
        return out


@pytest.fixture
def train(capsys: pytest.CaptureFixture[str]) -> Command:
    return Command(capsys)


def contents(folder: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# -- files -----------------------------------------------------------------------------------------


def cut(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def swell(path: Path) -> None:
    """Larger than any memory, and nothing in it."""
    os.truncate(path, 2**40)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "cut": cut,
    "flipped": flip,
    "oversized": swell,
    "missing": Path.unlink,
    "empty": lambda path: os.truncate(path, 0),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_one_line_that_names_it(
    damage: str, train: Command, tmp_path: Path
) -> None:
    """Each of the files of the only checkpoint; whole again, the run goes on."""
    run = finish(Trainer(breakout(tmp_path, replay_storage="raw", steps=400)), until=300)
    (checkpoint,) = checkpoints_of(run)
    chunk = ReplayMemory.chunks_of(checkpoint / "replay.fastdqn")[1]
    files = [*checkpoint.iterdir(), checkpoint.parent / "chunks" / chunk]
    assert len(files) == 4
    for file in files:
        data = file.read_bytes()
        DAMAGE[damage](file)
        assert file.name in train.refusal("--resume", run)
        file.write_bytes(data)
    assert "resumed at step 300" in train.output("--resume", run)


def test_where_the_last_one_is_damaged_it_says_what_it_goes_on_from(
    train: Command, tmp_path: Path
) -> None:
    run = finish(Trainer(cartpole(tmp_path, checkpoint_period_steps=200)), until=500)
    last, before = checkpoints_of(run)
    cut(last / "arrays.safetensors")
    shown = train.output("--resume", run)
    assert f"{last}: arrays.safetensors has" in shown
    assert "going on from the one before it" in shown
    assert f"resumed at step 400 from {before}" in shown


def test_a_replay_memory_of_another_kind_is_refused(train: Command, tmp_path: Path) -> None:
    """Of another game, shape, size or version, in a checkpoint that is whole otherwise."""
    run = finish(Trainer(cartpole(tmp_path)), until=200)
    (checkpoint,) = checkpoints_of(run)
    file = checkpoint / "replay.fastdqn"
    data = file.read_bytes()
    settings = {
        name: getattr(ReplayMemory.load(file, checkpoint.parent / "chunks"), name)
        for name in (
            *("capacity", "frame_shape", "dtype", "num_envs", "stack", "n_step", "discount"),
            *("padding", "reward_clip", "eviction", "seed"),
        )
    }
    others = {
        "frame_shape=(6,)": {"frame_shape": (6,)},  # Acrobot's
        "frame_shape=(84, 84)": {"frame_shape": (84, 84), "dtype": "uint8", "stack": 4},
        "capacity=100": {"capacity": 100},
        "seed=1": {"seed": 1},
        "discount=0.5": {"discount": 0.5},
    }
    for expected, changed in others.items():
        file.unlink()
        ReplayMemory(**{**settings, **changed}).save(file)
        change_manifest(checkpoint, {}, ["replay.fastdqn"])
        assert f"replay.fastdqn has {expected}; the run has " in train.refusal("--resume", run)
    header = data[:8] + (2).to_bytes(4, "little")
    file.write_bytes(header + crc_32c(header).to_bytes(4, "little") + data[16:])
    change_manifest(checkpoint, {}, ["replay.fastdqn"])
    assert "has format version 2; expected 1" in train.refusal("--resume", run)


def test_a_checkpoint_of_another_version_is_one_line(train: Command, tmp_path: Path) -> None:
    run = finish(Trainer(cartpole(tmp_path)), until=200)
    (checkpoint,) = checkpoints_of(run)
    whole = (checkpoint / "manifest.json").read_bytes()
    content = json.loads(whole)["content"]
    state, config = content["state"], content["config"]
    changes: dict[str, dict[str, Any]] = {
        "it has format 3, this fastdqn reads 2": {"format": 3},
        "setting='flux_capacity'": {"config": {**config, "flux_capacity": 3}},
        "KeyError: 'looked_back'": {
            "state": {name: value for name, value in state.items() if name != "looked_back"}
        },
        "KeyError: 'functions'": {
            "state": {name: value for name, value in state.items() if name != "functions"}
        },
        "AttributeError": {"state": {**state, "exploration": 3, "games": []}},
        "ValueError": {"state": {**state, "environments": {"envs": []}}},
        "TypeError": {"state": {**state, "means": {"sums": None}}},
    }
    for expected, changed in changes.items():
        (checkpoint / "manifest.json").write_bytes(whole)
        change_manifest(checkpoint, {"fastdqn": "9.8", **changed})
        line = train.refusal("--resume", run)
        assert "it was made by fastdqn 9.8, this is " in line
        assert expected in line or expected[-5:] == "Error"
    # What is missing of the settings has its default: an older version had no such choice.
    (checkpoint / "manifest.json").write_bytes(whole)
    fewer = {name: value for name, value in config.items() if name != "keep_checkpoints"}
    change_manifest(checkpoint, {"config": fewer})
    assert "resumed at step 200" in train.output("--resume", run)


# -- disks -----------------------------------------------------------------------------------------


def test_a_folder_on_a_disk_that_cannot_be_written_to(train: Command, tmp_path: Path) -> None:
    straight = finish(Trainer(cartpole(tmp_path / "straight")))
    with small_disk(tmp_path / "disk", 50) as disk:
        run = finish(Trainer(cartpole(disk)), until=300)
        before = contents(run)
        subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
        assert "Read-only file system" in train.refusal("--resume", run)
        refused = train.refusal("--env", "CartPole-v1", "--steps", "9000", "--out", disk)
        assert "Read-only file system" in refused
        subprocess.run(["mount", "-o", "remount,rw", str(disk)], check=True)
        assert contents(run) == before
        train.output("--resume", run)
        check_same(straight, run)


def test_a_full_disk(train: Command, tmp_path: Path) -> None:
    """Full before it begins, and in its midst: the last checkpoint stays, and is gone on with."""
    straight = finish(Trainer(cartpole(tmp_path / "straight")))
    with small_disk(tmp_path / "disk", 20) as disk:
        run = finish(Trainer(cartpole(disk)), until=300)
        filler = disk / "filler"
        for left in (0, 4_096, 200_000):
            filler.write_bytes(bytes(shutil.disk_usage(disk).free - left))
            before = contents(run / "checkpoints")
            line = train.refusal("--resume", run, "--allow-overcommit")
            assert "No space left on device" in line, line
            assert str(run) in line
            assert contents(run / "checkpoints") == before
            filler.unlink()
        filler.write_bytes(bytes(shutil.disk_usage(disk).free))
        assert "free some, or give another folder" in train.refusal("--resume", run)
        filler.unlink()
        train.output("--resume", run)
        check_same(straight, run)


# -- processes -------------------------------------------------------------------------------------


def test_a_lost_worker_is_one_line_and_the_run_goes_on(train: Command, tmp_path: Path) -> None:
    settings = {"steps": 1_000, "workers": 2, "checkpoint_period_steps": 250}
    straight = finish(Trainer(breakout(tmp_path / "straight", **settings)))
    run = finish(Trainer(breakout(tmp_path / "run", **settings)), until=300)

    def kill() -> None:
        """One of the workers, once the run has gone on for a while."""
        while not (run / "checkpoints" / "step-000000000500").exists():
            time.sleep(0.02)
        worker = next(
            child
            for child in psutil.Process().children()
            if any("worker_main" in word for word in child.cmdline())
        )
        worker.kill()

    killer = threading.Thread(target=kill)
    killer.start()
    line = train.refusal("--resume", run)
    killer.join()
    assert "was ended by SIGKILL; has the machine run out of memory?" in line
    train.output("--resume", run)
    check_same(straight, run)


def test_a_run_that_is_running_is_left_alone(train: Command, tmp_path: Path) -> None:
    run = finish(Trainer(cartpole(tmp_path)), until=200)
    with subprocess.Popen(
        [sys.executable, "-m", "fastdqn", "--resume", run, "--steps", "10_000_000"],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            while "resumed at step" not in process.stdout.readline():
                pass
            line = train.refusal("--resume", run)
            assert f"in use by process {process.pid} on " in line
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=120) == 128 + signal.SIGTERM
        finally:
            process.kill()
    last = int(checkpoints_of(run)[0].name.removeprefix("step-"))
    shown = train.output("--resume", run, "--steps", str(last + 10))
    assert f"resumed at step {last:,} from" in shown


@pytest.mark.slow
def test_signals_at_any_moment_lose_nothing(tmp_path: Path) -> None:
    """SIGINT and SIGTERM, one or two of them, while a run is loaded, plays, or has a checkpoint on
    its way: what is left is the run that nobody has stopped."""
    straight = finish(Trainer(breakout(tmp_path / "straight", **{**OFTEN, "steps": 2_000})))
    found = subprocess.run(
        [sys.executable, __file__, str(tmp_path / "stopped")],
        check=True,
        # Its children are forked, which the threads of PyTorch's OpenMP do not survive.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=550,
        capture_output=True,
        text=True,
    )
    assert found.stderr == ""
    one, two, writing = map(int, found.stdout.split()[-3:])
    assert one + two == SIGNALS
    assert min(one, two, writing) > 3
    (run,) = (tmp_path / "stopped").iterdir()
    finish(resumed_trainer(run, {"steps": 2_000}))
    check_same(straight, run)


def stop_many(out: Path) -> None:
    """In a process of its own, which forks one child after another and stops each."""
    warnings.simplefilter("ignore")
    random.seed(2)
    finish(Trainer(breakout(out, **OFTEN)), until=10)
    (run,) = out.iterdir()
    one = two = writing = 0
    for number in range(SIGNALS):
        child, messages = start(run, slow_disk=number % 2 == 0)
        assert os.read(messages, 1) == b"s"  # from here on signals are heard
        if number % 2 == 0 and os.read(messages, 1) == b"w":
            writing += 1
        else:
            time.sleep(random.uniform(0, 1))
        chosen = random.choice([signal.SIGINT, signal.SIGTERM])
        os.kill(child, chosen)
        if number % 4 < 2:
            time.sleep(random.uniform(0, 0.02))
            os.kill(child, chosen)
            two += 1
        else:
            one += 1
        _, status = os.waitpid(child, 0)
        assert os.WEXITSTATUS(status) == 128 + chosen, status
        os.close(messages)
        steps = Checkpoint(checkpoints_of(run)[0]).state()["counters"]["steps"]
        assert steps < 1_900, "the run comes to its end: let it have more steps"
    print(one, two, writing)


def start(run: Path, *, slow_disk: bool) -> tuple[int, int]:
    """A child that resumes the run, and what it says: that it hears signals ("s"), and that a
    checkpoint is on its way to a slow disk ("w")."""
    read, write = os.pipe()
    child = os.fork()
    if child:
        os.close(write)
        return child, read
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    enter, sync = command.StopSignals.__enter__, run_state._sync

    def entered(self: command.StopSignals) -> command.StopSignals:
        entered_self = enter(self)
        os.write(write, b"s")
        return entered_self

    def slowly(path: Path) -> None:
        if path.name.endswith(".partial"):
            os.write(write, b"w")
            time.sleep(0.15)
        sync(path)

    command.StopSignals.__enter__ = entered  # type: ignore[method-assign]
    if slow_disk:
        run_state._sync = slowly
    os._exit(train_main(["--resume", str(run)]))


def test_a_second_signal_does_not_wait_for_the_disk(tmp_path: Path) -> None:
    """While a checkpoint is written by a disk that hangs: it ends at once, and the older one is
    whole."""
    run = finish(Trainer(cartpole(tmp_path)), until=200)
    code = (
        "import sys, time, fastdqn.run_state as r\n"
        "r._sync = lambda path: (print('writing', flush=True), time.sleep(100))\n"
        "from fastdqn.cli import train_main\n"
        "sys.exit(train_main(sys.argv[1:]))"
    )
    before = contents(run / "checkpoints")
    arguments = ["--resume", str(run), "--checkpoint-period-steps", "100"]
    with subprocess.Popen(
        [sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            while not process.stdout.readline().startswith("writing"):
                pass
            process.send_signal(signal.SIGTERM)
            time.sleep(1)
            assert process.poll() is None  # it waits for the disk
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=10) == 128 + signal.SIGTERM
        finally:
            process.kill()
    after = contents(run / "checkpoints")
    assert {path: after[path] for path in before} == before
    finish(resumed_trainer(run, {}))


def test_hours_leave_time_for_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also for the part of it that a thread does while the run goes on."""
    sync = run_state._sync

    def slowly(path: Path) -> None:
        if path.name.endswith(".partial"):
            time.sleep(1.5)
        sync(path)

    monkeypatch.setattr(run_state, "_sync", slowly)
    seconds = 14.0  # a checkpoint takes 3
    trainer = Trainer(
        cartpole(tmp_path, steps=None, hours=seconds / 3600, checkpoint_period_steps=60)
    )
    began = time.monotonic()
    run = finish(trainer)
    took = time.monotonic() - began
    assert seconds - 10.5 <= took <= seconds
    assert checkpoints_of(run)[0].name == f"step-{trainer.counters.steps:012}"


# -- places ----------------------------------------------------------------------------------------


def test_a_run_may_move_and_have_any_name(
    train: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Renamed, moved, behind a link, in a folder with spaces and other letters, in turns, and with
    the working directory elsewhere; its held-out states stay beside it."""
    monkeypatch.chdir(tmp_path)
    settings = {"evaluation_period_steps": 300, "evaluation_episodes": 1, "log_period_steps": 700}
    straight = finish(Trainer(cartpole(tmp_path / "straight", **settings)))
    first = finish(Trainer(cartpole(Path("first"), **settings)), until=100)
    second = tmp_path / "zweite Läufe ☃" / "mein Lauf"
    second.parent.mkdir()
    first.rename(second)
    monkeypatch.chdir("/")
    shown = train.output("--resume", second, "--steps", "200", "--prefetch-threads", "2")
    assert f"to {second}" in shown
    link = tmp_path / "a link"
    link.symlink_to(second)
    train.output("--resume", link, "--steps", "410")
    monkeypatch.chdir(second)
    train.output("--resume", ".", "--steps", "700", "--prefetch-threads", "0")
    check_same(straight, second)
    assert {path.name for path in tmp_path.iterdir()} == {
        *("straight", "first", "a link", second.parent.name)
    }
    assert {path.name for path in second.parent.iterdir()} == {second.name, "held_out"}
    assert "out='elsewhere': the run has" in train.refusal("--resume", second, "--out", "elsewhere")


def test_two_may_go_on_from_copies_of_one_checkpoint(tmp_path: Path) -> None:
    """And one may go on from an older one than it was at: what came after is forgotten."""
    straight = finish(Trainer(cartpole(tmp_path / "straight")))
    run = finish(Trainer(cartpole(tmp_path / "run", checkpoint_period_steps=200)), until=500)
    copy = tmp_path / "copy"
    shutil.copytree(run, copy)
    for folder in (run, copy):
        finish(resumed_trainer(folder, {}))
        check_same(straight, folder)
    shutil.rmtree(checkpoints_of(copy)[0])
    finish(resumed_trainer(copy, {}))
    check_same(straight, copy)


def test_a_clock_that_is_set_back_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    straight = finish(Trainer(cartpole(tmp_path / "straight")))
    run = finish(Trainer(cartpole(tmp_path / "run", checkpoint_period_steps=100)), until=333)
    now = time.time
    monkeypatch.setattr(time, "time", lambda: now() - 86_400 * 400)
    finish(resumed_trainer(run, {}))
    check_same(straight, run)


if __name__ == "__main__":
    stop_many(Path(sys.argv[1]))
