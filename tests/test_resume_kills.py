"""Kills while checkpoints are written, and disks that refuse: what is left can be gone on with."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
from test_resume import breakout, check_same, finish

from fastdqn.replay import ReplayMemory
from fastdqn.resuming import resumed_trainer
from fastdqn.run_state import checkpoints_of
from fastdqn.trainer import Trainer

KILLS = 100
STEPS = 2_600
NO_CHECKPOINTS = {"checkpoint_period_steps": 1_000_000}
EVERY = {"checkpoint_period_steps": 10, "num_envs": 1, "steps": STEPS, "train_period_steps": 40}


@pytest.mark.slow
def test_kills_at_random_moments_lose_nothing(tmp_path: Path) -> None:
    """A hundred processes are killed, nearly all of them while a checkpoint is on its way to the
    disk; what the last one leaves is the run that nobody has killed."""
    straight = finish(Trainer(breakout(tmp_path / "straight", **{**EVERY, **NO_CHECKPOINTS})))
    found = subprocess.run(
        [sys.executable, __file__, str(tmp_path / "killed")],
        check=True,
        # Its children are forked, which the threads of PyTorch's OpenMP do not survive.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=600,
        capture_output=True,
        text=True,
    )
    (run,) = (tmp_path / "killed").iterdir()
    kills, resumes = map(int, found.stdout.split())
    assert kills == resumes == KILLS
    finish(resumed_trainer(run, {"checkpoint_period_steps": 1_000_000}))
    check_same(straight, run)
    names = {path.name for path in (run / "checkpoints").iterdir()}
    assert names == {"chunks", *(path.name for path in checkpoints_of(run))}
    needed = {
        name
        for path in checkpoints_of(run)
        for name in ReplayMemory.chunks_of(path / "replay.fastdqn")
    }
    assert {path.name for path in (run / "checkpoints" / "chunks").iterdir()} == needed


def kill_many(out: Path) -> None:
    """In a process of its own, which forks one child after another and kills each."""
    warnings.simplefilter("ignore")
    random.seed(1)
    finish(Trainer(breakout(out, **EVERY)), until=10)
    (run,) = out.iterdir()
    killed = resumed = 0
    while killed < KILLS:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            trainer = resumed_trainer(run, {})  # the last kill has left something whole
            os.write(write, b"r")
            for _ in trainer.run():
                pass
            os._exit(0)
        os.close(write)
        resumed += os.read(read, 1) == b"r"
        os.close(read)
        time.sleep(random.uniform(0, 0.25))
        os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), "the run came to its end: give it more steps"
        killed += 1
    print(killed, resumed)


def test_a_disk_that_takes_no_more_is_one_line(tmp_path: Path) -> None:
    """And the run can be gone on with where there is room: from its last whole checkpoint."""
    run = finish(Trainer(breakout(tmp_path, num_envs=1, steps=400)), until=300)
    before = {path: path.read_bytes() for path in checkpoints_of(run)[0].iterdir()}
    assert before
    process = subprocess.run(
        [sys.executable, "-m", "fastdqn", "--resume", str(run), "--allow-overcommit"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20)),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 2
    (line,) = process.stderr.splitlines()
    assert line.startswith("fastdqn-train: ")
    assert "could not be written: File too large" in line
    assert {path: path.read_bytes() for path in checkpoints_of(run)[0].iterdir()} == before
    finish(resumed_trainer(run, {}))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    run = finish(Trainer(breakout(tmp_path, num_envs=1, steps=400)), until=300)
    for folder in (run, run / "checkpoints"):
        folder.chmod(0o555)
    with pytest.raises(Exception, match=r"Permission denied|Read-only"):
        finish(resumed_trainer(run, {}))
    for folder in (run, run / "checkpoints"):
        folder.chmod(0o755)
    finish(resumed_trainer(run, {}))


if __name__ == "__main__":
    kill_many(Path(sys.argv[1]))
