"""What a run needs, against made-up and real limits; the refusals say what would fit."""

from __future__ import annotations

import csv
import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fastdqn.budget import Needs, check_fits, needs_of, with_sized_replay
from fastdqn.config import Config
from fastdqn.errors import UserError
from fastdqn.machine import Disk, Limit
from fastdqn.replay import ReplayMemory

GIB = 2**30


def breakout(**settings: Any) -> Config:
    return Config(game="Breakout", **{"threads": 2, "out": None, **settings}).resolved()


def needs(
    config: Config,
    game: str | None = "Breakout",
    shape: tuple[int, ...] = (84, 84),
    written: int = 0,
) -> Needs:
    return needs_of(
        config,
        frame_shape=shape,
        dtype=np.dtype("uint8"),
        game=game,
        network_bytes=34 * 2**20,
        on_host=True,
        written=written,
    )


def refusal(config: Config, limits: list[Limit], disks: dict[Path, Disk] | None = None) -> str:
    with pytest.raises(UserError) as caught:
        check_fits(config, needs(config), limits, disks)
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_raw_frames_need_what_they_are() -> None:
    config = breakout(replay_capacity=1_000_000, replay_storage="raw")
    check_fits(config, needs(config), [Limit("this machine's memory", 8 * 10**9)])
    message = refusal(config, [Limit("this machine's memory", 2 * 10**9)])
    assert message.startswith(
        "replay_capacity=1000000: the run needs 7.30 GB more memory (replay 7.10 GB, batches "
        "36.1 MB, networks 35.7 MB, everything else 134 MB), and this machine's memory leaves "
        "2 GB; --replay-capacity "
    )
    assert message.endswith("; --allow-overcommit starts it all the same")
    (fits,) = re.findall(r"--replay-capacity (\d+) or --replay-memory (\d+)MiB would fit", message)
    assert 250_000 < int(fits[0]) < 2 * 10**9 / 7_096


def test_what_is_advised_fits_and_no_more_would() -> None:
    config = breakout(replay_capacity=1_000_000, replay_storage="raw")
    for limit in (Limit("RLIMIT_AS", 3 * GIB, counts_reserved=True), Limit("RLIMIT_DATA", GIB)):
        message = refusal(config, [limit])
        fits = int(re.findall(r"--replay-capacity (\d+)", message)[0])
        least = breakout(replay_capacity=fits, replay_storage="raw")
        check_fits(least, needs(least), [limit])
        refusal(breakout(replay_capacity=fits + 1, replay_storage="raw"), [limit])
        size = re.findall(r"--replay-memory (\w+)", message)[0]
        sized = breakout(replay_memory=size, replay_storage="raw")
        sized = with_sized_replay(sized, needs(sized))
        assert 0 <= fits - sized.replay_capacity < 2**20 / 7_000
        check_fits(sized, needs(sized), [limit])


def test_the_tightest_of_all_limits_counts() -> None:
    config = breakout(replay_capacity=100_000, replay_storage="raw")
    plenty = Limit("this machine's memory", 100 * GIB)
    for name in ("the container's memory limit", "RLIMIT_DATA (ulimit -d)"):
        message = refusal(config, [plenty, Limit(name, GIB // 2)])
        assert f"and {name} leaves 537 MB" in message


def test_threads_count_where_address_space_does() -> None:
    config = breakout(replay_capacity=100_000, replay_storage="raw")
    check_fits(config, needs(config), [Limit("RLIMIT_DATA", GIB)])
    message = refusal(config, [Limit("RLIMIT_AS", GIB, counts_reserved=True)])
    assert "threads 377 MB" in message


def test_where_nothing_fits_it_says_so() -> None:
    for config, left in ((breakout(), 100 * 2**20), (breakout(batch_size=4096), GIB)):
        message = refusal(config, [Limit("RLIMIT_DATA", left)])
        assert "no replay memory fits beside the rest; a smaller batch_size" in message


def test_overcommitting_is_the_users_choice() -> None:
    config = breakout(replay_capacity=10**9, allow_overcommit=True)
    check_fits(config, needs(config), [Limit("RLIMIT_DATA", 0)])


def test_a_capacity_from_memory() -> None:
    config = breakout(replay_memory="1GiB", replay_storage="raw")
    sized = with_sized_replay(config, needs(config))
    assert sized.replay_memory is None
    assert sized.replay_capacity == GIB // (7_056 + 40)
    same = breakout(replay_storage="raw")
    assert with_sized_replay(same, needs(same)) is same
    tiny = breakout(replay_memory="20kB", replay_storage="raw")
    with pytest.raises(
        UserError, match=r"replay_memory='20kB': room for 2 frames of up to 7\.10 kB"
    ):
        with_sized_replay(tiny, needs(tiny))


def test_a_disk_too_small_is_refused(tmp_path: Path) -> None:
    replay, out = tmp_path / "replay", tmp_path / "runs"
    config = breakout(
        replay_capacity=10_000,
        replay_storage="raw",
        replay_dir=str(replay),
        out=str(out),
        checkpoint_period_minutes=None,
    )
    plenty = [Limit("this machine's memory", 100 * GIB)]
    written = 10_000 * 7_056
    for left, fits in ((written + 2 * 35_651_584, True), (written + 2 * 35_651_584 - 1, False)):
        disk = Disk(1, left, None)
        if fits:
            check_fits(config, needs(config), plenty, {replay: disk, out: disk})
        else:
            message = refusal(config, plenty, {replay: disk, out: disk})
            assert message.startswith(f"out='{out}': the run writes 71.3 MB there and its disk has")
    message = refusal(config, plenty, {replay: Disk(1, 7_056_000, None), out: Disk(2, GIB, None)})
    assert message.startswith(
        f"replay_dir='{replay}': the run writes 70.6 MB there and its disk has 7.06 MB; "
        "--replay-capacity 1000 would fit"
    )
    limited = {replay: Disk(1, GIB, 7_056_000), out: Disk(2, GIB, None)}
    assert "may, by RLIMIT_FSIZE (ulimit -f), take a file of 7.06 MB" in refusal(
        config, plenty, limited
    )
    # Frames in files are in nobody's memory; their records are.
    check_fits(
        config,
        needs(config),
        [Limit("RLIMIT_DATA", 250 * 10**6)],
        {replay: Disk(1, GIB, None), out: Disk(2, GIB, None)},
    )


BATCH_BYTES = 2 * 32 * 4 * 7_056  # of an update that is under way


def test_checkpoints_hold_the_replay_memory(tmp_path: Path) -> None:
    """Those that are kept, and the one that is written beside them."""
    out = tmp_path / "runs"
    config = breakout(replay_capacity=10_000, replay_storage="raw", out=str(out))
    written = 3 * (10_000 * (7_056 + 40) + 35_651_584 + BATCH_BYTES) + 2 * 35_651_584
    assert needs(config).written == written
    # A resumed run has some of them already, at most all.
    assert needs(config, written=10**8).written == written - 10**8
    assert needs(config, written=10**9).written == 2 * 35_651_584
    plenty = [Limit("this machine's memory", 100 * GIB)]
    check_fits(config, needs(config), plenty, {out: Disk(1, written, None)})
    message = refusal(config, plenty, {out: Disk(1, written - 1, None)})
    assert "--checkpoint-period-minutes none keeps no checkpoints" in message


def test_checkpoints_share_what_does_not_change_between_them(tmp_path: Path) -> None:
    settings = {"replay_capacity": 1_000_000, "replay_storage": "raw", "out": str(tmp_path)}
    period = {"checkpoint_period_minutes": None, "checkpoint_period_steps": 50_000}
    frame, models, network = 7_056 + 40, 2 * 35_651_584, 35_651_584 + BATCH_BYTES
    whole = 1_000_000 * frame + network + models
    changes = 50_000 * frame + 4_000_000 + 8 * 2**20
    for keep in (1, 2, 5):
        config = breakout(**settings, **period, keep_checkpoints=keep)
        assert needs(config).written == whole + keep * (changes + network)
    spread = breakout(**settings, **period, keep_checkpoints=1, replay_eviction="random")
    assert needs(spread).written == whole + 2 * changes + 40_000_000 + network
    often = breakout(**settings, checkpoint_period_minutes=0.5, keep_checkpoints=1)
    assert needs(often).written == whole + changes - 20_000 * frame + network


def test_an_evaluation_beside_the_run_counts_where_other_processes_do() -> None:
    config = breakout(replay_capacity=50_000, replay_storage="raw", evaluation_period_steps=1_000)
    left = sum(needs(config).beside.values()) + 50_000 * needs(config).frame
    check_fits(config, needs(config), [Limit("RLIMIT_DATA", left)])
    message = refusal(config, [Limit("this machine's memory", left, counts_children=True)])
    assert "evaluation 336 MB" in message


COMMAND = """
    import resource, sys
    resource.setrlimit(resource.{limit}, ({nbytes}, resource.RLIM_INFINITY))
    from fastdqn.cli import train_main
    status = train_main(sys.argv[1:])
    if status == 0:
        print("most held:", 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
    sys.exit(status)
"""


def train_within(
    limit: str, nbytes: int, *arguments: str, out: str = "none", timeout: float = 300
) -> subprocess.CompletedProcess[str]:
    """The command, in a process that may take no more than this; it says what it held at most."""
    script = textwrap.dedent(COMMAND.format(limit=limit, nbytes=nbytes))
    return subprocess.run(
        [
            *(sys.executable, "-c", script, "--game", "Breakout", "--out", out),
            *("--replay-capacity", "1_000_000", "--threads", "1", *arguments),
        ],
        capture_output=True,
        text=True,
        timeout=timeout,
    )


@pytest.mark.parametrize(
    ("limit", "nbytes", "storage"),
    [
        ("RLIMIT_AS", GIB, "compressed"),
        ("RLIMIT_AS", 2 * GIB, "raw"),
        ("RLIMIT_DATA", 2 * GIB, "raw"),
    ],
)
def test_a_process_that_may_take_too_little_refuses_before_the_first_step(
    limit: str, nbytes: int, storage: str
) -> None:
    done = train_within(limit, nbytes, "--replay-storage", storage)
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert done.stderr.count("\n") == 1
    assert f"{limit} (ulimit" in done.stderr
    assert re.search(r"--replay-capacity \d+|no replay memory fits beside", done.stderr)


@pytest.mark.parametrize("limit", ["RLIMIT_AS", "RLIMIT_DATA"])
def test_a_million_transitions_train_in_two_gibibytes(limit: str) -> None:
    steps = ("--steps", "400", "--learning-starts-steps", "200")
    done = train_within(limit, 2 * GIB, *steps)
    assert (done.returncode, done.stderr) == (0, "")
    assert "done at step 400" in done.stdout


@pytest.mark.slow
def test_a_million_frames_are_stored_and_learned_from_in_two_gibibytes(tmp_path: Path) -> None:
    """Every frame by the trainer's own loop, with checkpoints; of updates only what time allows."""
    steps = 1_000_000
    done = train_within(
        *("RLIMIT_AS", 2 * GIB, "--steps", str(steps), "--train-period-steps", "1_000"),
        *("--learning-starts-steps", "1_000", "--epsilon-start", "0.98", "--epsilon-end", "0.98"),
        *("--log-period-steps", "10_000", "--evaluation-period-steps", "none"),
        *("--checkpoint-period-steps", "200_000"),
        out=str(tmp_path),
        timeout=7_200,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    (run,) = tmp_path.iterdir()
    with (run / "progress.csv").open() as file:
        *_, last = csv.DictReader(file)
    assert (int(last["steps"]), int(last["updates"])) == (steps, steps // 1_000)
    held = int(re.findall(r"most held: (\d+)", done.stdout)[0])
    replay = int(last["replay_bytes"])
    print(f"replay {replay:,} bytes, the process at most {held:,}")
    assert replay <= 0.3e9
    assert held <= 0.9e9  # the rest is what any run takes: torch, mostly

    newest = run / "checkpoints" / f"step-{steps:012}"
    memory = ReplayMemory.load(newest / "replay.fastdqn", newest.with_name("chunks"))
    assert memory.num_frames == memory.capacity == 1_000_000
    assert len(memory) > 990_000
    memory.check_invariants()
