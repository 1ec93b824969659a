"""The benchmarks of stores and disks: what they fill memories with, their limit, their tables."""

from __future__ import annotations

import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path

import bench_disk
import bench_learning
import bench_stores
import memory_group
import numpy as np
import pytest
import report
from harness import WrongAnswer
from memory_group import NoMemoryGroup

from fastdqn.replay import ReplayMemory


def test_play_is_consecutive_frames_of_games_and_no_frame_is_a_copy_of_the_last_run() -> None:
    runs = bench_stores.play("Breakout")
    found = list(islice(runs, 9))
    runs.close()  # type: ignore[attr-defined]
    assert all(1 < len(run) <= bench_stores.RUN_STEPS for run in found)
    changed = [np.mean(run[1:] != run[:-1]) for run in found]
    assert max(changed) < 0.02, "as frames of Breakout are that follow each other"
    assert len({run.tobytes() for run in found}) == len(found)


def test_memories_are_filled_equally_and_a_difference_is_found() -> None:
    frames = np.random.default_rng(0).integers(256, size=(7, 90, 84, 84), dtype=np.uint8)
    memories = {name: ReplayMemory(500, storage=name) for name in ("raw", "compressed")}
    bench_stores.fill(list(memories.values()), iter(frames))
    assert {memory.num_frames for memory in memories.values()} == {500}
    bench_stores.check_equal(memories)
    other = ReplayMemory(500)
    bench_stores.fill([other], iter(255 - frames))
    with pytest.raises(WrongAnswer, match="other: states"):
        bench_stores.check_equal({"raw": memories["raw"], "other": other})


def test_every_section_has_its_place_in_a_page() -> None:
    assert sorted(report.BLOCK.findall(bench_stores.PAGE.read_text(encoding="utf-8"))) == sorted(
        bench_stores.SECTIONS
    )
    assert report.BLOCK.findall(bench_disk.PAGE.read_text(encoding="utf-8")) == ["disk"]


def test_one_block_is_written_and_the_others_stay() -> None:
    text = "<!-- figures: a -->\nold\n<!-- end -->\n<!-- figures: b -->\nold\n<!-- end -->\n"
    written = report.fill(text, "b", "new")
    assert written == text[: len(text) // 2] + text[len(text) // 2 :].replace("old", "new")
    with pytest.raises(KeyError, match="c"):
        report.fill(text, "c", "new")


def test_a_section_prints_and_writes_its_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- figures: append -->\nold\n<!-- end -->\n")
    monkeypatch.setattr(bench_stores, "PAGE", page)
    options = ["Pong", "--only", "append", "--frames", "300", "--seconds", "0"]
    assert bench_stores.main(options) == 0
    heading, _, line, *_ = capsys.readouterr().out.strip().splitlines()
    assert heading == "|  | raw | compressed | more |"
    assert line.startswith("| Pong | ")
    assert "old" in page.read_text()
    assert bench_stores.main([*options, "--write"]) == 0
    assert "old" not in page.read_text()
    assert "| Pong | " in page.read_text()


def test_runs_that_should_do_the_same_and_do_not_are_found() -> None:
    losses = bench_learning.Losses()
    losses.compare(40, float("nan"))
    losses.compare(40, float("nan"))
    losses.compare(80, 0.25)
    losses.compare(80, 0.25)
    with pytest.raises(WrongAnswer, match=r"0\.5 by step 80, not 0\.25"):
        losses.compare(80, 0.5)
    with pytest.raises(WrongAnswer, match="by step 40"):
        losses.compare(40, 0.5)


@pytest.mark.parametrize(
    ("membership", "controllers", "place"),
    [
        ("4:memory:/a/b\n0::/\n", {}, "memory/a/b"),
        ("5:cpu,memory:/a\n", {}, "memory/a"),
        ("0::/a/b\n", {"a": "cpu memory"}, "a"),
        ("0::/a/b\n", {"a": "cpu memory", "a/b": "memory"}, "a/b"),
        ("0::/\n", {".": "memory"}, "."),
    ],
)
def test_a_memory_group_lies_within_the_limits_of_its_process(
    tmp_path: Path, membership: str, controllers: dict[str, str], place: str
) -> None:
    groups, member = tmp_path / "groups", tmp_path / "member"
    member.write_text(membership)
    for folder in ("memory/a/b", "a/b"):
        (groups / folder).mkdir(parents=True)
    for folder, names in controllers.items():
        (groups / folder / "cgroup.subtree_control").write_text(names)
    with memory_group.memory_group("ours", 2**30, cgroups=groups, membership=member) as group:
        assert group == groups / place / "ours"
        assert group.is_dir()
    assert not group.exists()


@pytest.mark.parametrize(
    ("membership", "reason"),
    [
        ("0::/a/b\n", r"memory is not in cgroup\.subtree_control"),
        ("4:cpu:/a\n", "names no memory group"),
        ("4:memory:/missing\n", "No such file or directory: no memory group can be made there"),
        (None, "no control groups here"),
    ],
)
def test_where_no_memory_group_can_be_made_a_line_says_why(
    tmp_path: Path, membership: str | None, reason: str
) -> None:
    member = tmp_path / "member"
    if membership is not None:
        member.write_text(membership)
    with (
        pytest.raises(NoMemoryGroup, match=reason) as caught,
        memory_group.memory_group("ours", 2**30, cgroups=tmp_path, membership=member),
    ):
        pass
    assert "\n" not in str(caught.value)


def test_a_process_in_a_memory_group_cannot_hold_more() -> None:
    hold = "import sys; held = b'1' * (int(sys.argv[1]) * 2**20)"
    try:
        with memory_group.memory_group("fastdqn-test", 64 * 2**20) as group:
            status = {
                mib: subprocess.run(
                    memory_group.entering(group, [sys.executable, "-c", hold, str(mib)])
                ).returncode
                for mib in (16, 128)
            }
            assert status == {16: 0, 128: -signal.SIGKILL}
            assert 16 * 2**20 < memory_group.most_held(group) <= 64 * 2**20
    except NoMemoryGroup as error:
        pytest.skip(str(error))


@pytest.mark.slow
def test_training_from_a_disk_is_measured_in_a_process_with_a_limit(
    capfd: pytest.CaptureFixture[str],
) -> None:
    options = ["--limit", "700MiB", "--times", "0.1", "--seconds", "0", "--turn-steps", "16"]
    status = bench_disk.main(options)
    out, err = capfd.readouterr()
    if status == 2 and "no memory group" in err:
        pytest.skip(err)
    assert (status, err) == (0, "")
    assert "the same frames in memory" in out
    assert "bytes read from the disk" in out


def test_what_does_not_fit_is_not_measured(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_disk.main(["--limit", "100TiB"]) == 2
    assert capsys.readouterr().err.startswith("bench_disk: not measured: this takes 550 TB")
