"""The folder of checkpoints: what it takes of the disk, what it does about damage and deletion."""

from __future__ import annotations

import errno
import json
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from fastdqn import run_state
from fastdqn.budget import needs_of
from fastdqn.config import Config
from fastdqn.errors import UserError
from fastdqn.replay import ReplayMemory
from fastdqn.run_state import (
    Checkpoint,
    CheckpointWriter,
    DamagedCheckpoint,
    checkpoints_of,
    nbytes_of_checkpoints,
)

MIB = 2**20
SHAPE = (28, 28)


class Noise:
    """A memory of frames that have nothing in common."""

    def __init__(self, capacity: int = 9_000, **options: Any) -> None:
        self.memory = ReplayMemory(capacity, SHAPE, **options)
        self._pool = np.random.default_rng(0).integers(0, 256, (997, 1, *SHAPE), np.uint8)
        self._given = 0

    def add(self, count: int) -> None:
        no = np.zeros(1, np.bool_)
        for _ in range(count):
            frame = self._pool[self._given % len(self._pool)]
            frame[0, 0, :8] = np.frombuffer(np.int64(self._given).tobytes(), np.uint8)
            if self._given % 300 == 0:
                self.memory.begin(frame)
            else:
                self.memory.append(np.array([1]), np.zeros(1), frame, no, no)
            self._given += 1


def settings_of(memory: ReplayMemory) -> dict[str, Any]:
    names = ("capacity", "frame_shape", "storage", "directory", "eviction", "seed")
    return {name: getattr(memory, name) for name in names}


def load(path: Path, memory: ReplayMemory) -> ReplayMemory:
    return Checkpoint(path).load_memory(settings_of(memory))


def write(writer: CheckpointWriter, steps: int, memory: ReplayMemory) -> None:
    writer.write(steps, {}, {"n": steps}, memory)
    writer.wait()


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 3] ^= 1
    path.write_bytes(data)


def frame_chunks(path: Path) -> list[Path]:
    names = ReplayMemory.chunks_of(path / "replay.fastdqn")
    return [path.parent / "chunks" / name for name in names]


# -- how much of the disk ------------------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 2, 3])
@pytest.mark.parametrize("eviction", ["fifo", "random"])
@pytest.mark.parametrize("storage", ["raw", "compressed"])
def test_the_peak_of_the_disk(
    storage: Literal["raw", "compressed"], eviction: Literal["fifo", "random"], keep: int,
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Of a memory that is overwritten again and again: one checkpoint takes what the memory does,
    and all of them together, with one being written, what the budget has counted."""
    noise = Noise(24_000, storage=storage, eviction=eviction)
    noise.add(24_000)
    peaks: list[int] = []
    remove = CheckpointWriter._remove_others

    def removing(self: CheckpointWriter, beside: Path | None = None) -> None:
        peaks.append(nbytes_of_checkpoints(tmp_path))  # all is written, nothing is removed yet
        remove(self, beside)

    monkeypatch.setattr(CheckpointWriter, "_remove_others", removing)
    writer = CheckpointWriter(tmp_path, keep)
    write(writer, 0, noise.memory)
    assert nbytes_of_checkpoints(tmp_path) <= noise.memory.nbytes_now + 64 * 1024
    for number in range(1, 20):  # once around and a half
        noise.add(2_000)
        write(writer, number, noise.memory)
    config = Config(
        game="Breakout", replay_capacity=24_000, replay_storage=storage, replay_eviction=eviction,
        checkpoint_period_steps=2_000, checkpoint_period_minutes=None, keep_checkpoints=keep,
        out=str(tmp_path),
    )  # fmt: skip
    counted = needs_of(
        config, frame_shape=SHAPE, dtype=np.dtype("uint8"), game=None, network_bytes=0, on_host=True
    ).written
    assert max(peaks) <= counted + keep * 2**16  # the small parts
    # Everything that is not needed is gone: one checkpoint more, and the last `keep` are there.
    assert len(checkpoints_of(tmp_path)) == keep
    needed = {chunk for path in checkpoints_of(tmp_path) for chunk in frame_chunks(path)}
    assert set((tmp_path / "checkpoints" / "chunks").iterdir()) == needed
    for path in checkpoints_of(tmp_path):
        load(path, noise.memory).check_invariants()


def test_chunks_of_compressed_frames_are_the_same_again_behind_a_change(tmp_path: Path) -> None:
    """Where a tenth of the memory has changed, little more than a tenth is written."""
    noise = Noise(20_000, storage="compressed")
    noise.add(20_000)
    writer = CheckpointWriter(tmp_path, 1)
    write(writer, 0, noise.memory)
    before = nbytes_of_checkpoints(tmp_path)
    written = []
    for number in range(1, 11):
        noise.add(2_000)
        known = set(frame_chunks(checkpoints_of(tmp_path)[0]))
        write(writer, number, noise.memory)
        new = set(frame_chunks(checkpoints_of(tmp_path)[0])) - known
        written.append(sum(path.stat().st_size for path in new))
    assert sum(written) / 10 < 0.1 * before + 1.5 * MIB  # 0.7 MiB of them are records
    assert max(written) < 0.1 * before + 3 * MIB


# -- a disk that damages ---------------------------------------------------------------------------


def test_a_damaged_chunk_is_named_and_an_older_checkpoint_without_it_loads(tmp_path: Path) -> None:
    noise = Noise()
    noise.add(9_000)
    writer = CheckpointWriter(tmp_path, 2)
    write(writer, 0, noise.memory)
    noise.add(1_000)
    write(writer, 1, noise.memory)
    newest, older = checkpoints_of(tmp_path)
    alone = sorted(set(frame_chunks(newest)) - set(frame_chunks(older)))
    shared = sorted(set(frame_chunks(newest)) & set(frame_chunks(older)))
    assert alone and shared  # noqa: PT018
    flip(alone[0])
    with pytest.raises(DamagedCheckpoint, match=rf"{newest}.* a part of it is damaged: {alone[0]}"):
        load(newest, noise.memory)
    load(older, noise.memory)
    flip(alone[0])  # back
    flip(shared[0])
    for path in (newest, older):
        with pytest.raises(DamagedCheckpoint, match=f"{path}.*{shared[0]}"):
            load(path, noise.memory)


def test_damage_to_what_is_shared_is_found_and_written_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At the latest when each chunk has had its turn; then every checkpoint with it is whole."""
    monkeypatch.setattr(run_state, "LOOKING_TURNS", 4)
    noise = Noise()
    noise.add(9_000)
    writer = CheckpointWriter(tmp_path, 2)
    write(writer, 0, noise.memory)
    damaged = frame_chunks(checkpoints_of(tmp_path)[0])[1]
    flip(damaged)
    told = 0
    for number in range(1, 6):
        try:
            write(writer, number, noise.memory)
        except RuntimeWarning as warning:  # as the tests have it of warnings
            assert str(damaged) in str(warning)  # noqa: PT017
            assert "the next checkpoint writes it again" in str(warning)  # noqa: PT017
            told += 1
    assert told == 1
    for path in checkpoints_of(tmp_path):
        load(path, noise.memory)


def test_a_removed_chunk_is_noticed_at_once(tmp_path: Path) -> None:
    noise = Noise()
    noise.add(9_000)
    writer = CheckpointWriter(tmp_path, 3)
    write(writer, 0, noise.memory)
    frame_chunks(checkpoints_of(tmp_path)[0])[2].unlink()
    write(writer, 1, noise.memory)
    for path in checkpoints_of(tmp_path):
        load(path, noise.memory)


def test_checkpoints_that_somebody_removes_or_damages_end_no_run(tmp_path: Path) -> None:
    """They are its user's to delete: the next one is whole by itself."""
    noise = Noise()
    noise.add(9_000)
    writer = CheckpointWriter(tmp_path, 3)
    for number in range(3):
        write(writer, number, noise.memory)
    *_, oldest = checkpoints_of(tmp_path)
    flip(oldest / "replay.fastdqn")
    write(writer, 3, noise.memory)
    shutil.rmtree(checkpoints_of(tmp_path)[0])
    write(writer, 4, noise.memory)
    shutil.rmtree(tmp_path / "checkpoints")
    write(writer, 5, noise.memory)
    (only,) = checkpoints_of(tmp_path)
    load(only, noise.memory)
    write(writer, 6, noise.memory)
    assert len(checkpoints_of(tmp_path)) == 2


# -- a disk that is full ---------------------------------------------------------------------------


@contextmanager
def small_disk(folder: Path, mib: int) -> Iterator[Path]:
    """A file system of this size, where this process may mount one."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(folder)]
    try:
        done = subprocess.run(mount, capture_output=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command")
    if done.returncode:
        pytest.skip("this process may not mount a file system")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_on_a_full_disk_older_checkpoints_make_room(tmp_path: Path) -> None:
    """All but the last: that one stays whole whatever comes."""
    noise = Noise()
    noise.add(9_000)
    with small_disk(tmp_path / "disk", 15) as run:
        writer = CheckpointWriter(run, 3)
        write(writer, 0, noise.memory)
        noise.add(4_500)
        write(writer, 1, noise.memory)
        noise.add(4_500)
        with pytest.warns(RuntimeWarning, match=r"step-000000000000: removed, as the disk has no"):
            write(writer, 2, noise.memory)
        newest, older = checkpoints_of(run)
        assert (newest.name[-1], older.name[-1]) == ("2", "1")
        for path in (newest, older):
            load(path, noise.memory)
        (run / "more").write_bytes(bytes(shutil.disk_usage(run).free))
        noise.add(9_000)
        with (
            pytest.warns(RuntimeWarning, match=r"step-000000000001: removed"),
            pytest.raises(UserError, match=r"step-000000000003: could not be written: .*No space"),
        ):
            write(writer, 3, noise.memory)
        assert checkpoints_of(run) == [newest]
        assert {path.name for path in (run / "checkpoints").iterdir()} == {newest.name, "chunks"}
        load(newest, noise.memory)
        (run / "more").unlink()


class Refusing:
    """A memory whose save meets a full disk so many times."""

    def __init__(self, memory: ReplayMemory, times: int) -> None:
        self._memory = memory
        self.times = times

    def save_in_chunks(self, path: Path, chunks: Path, *others: Any) -> list[str]:
        if self.times:
            self.times -= 1
            raise OSError(errno.ENOSPC, "No space left on device")
        return self._memory.save_in_chunks(path, chunks, *others)


def test_the_thread_meets_a_full_disk_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the weights are written, behind the replay memory."""
    noise = Noise()
    noise.add(9_000)
    writer = CheckpointWriter(tmp_path, 3)
    write(writer, 0, noise.memory)
    write(writer, 1, noise.memory)
    save_file, refusals = run_state.save_file, [1]

    def refusing(arrays: Any, path: Path) -> None:
        if refusals:
            refusals.pop()
            raise run_state.SafetensorError("I/O error: No space left on device (os error 28)")
        save_file(arrays, path)

    monkeypatch.setattr(run_state, "save_file", refusing)
    noise.add(500)
    with pytest.warns(RuntimeWarning, match="step-000000000000: removed"):
        write(writer, 2, noise.memory)
    assert [path.name[-1] for path in checkpoints_of(tmp_path)] == ["2", "1"]
    for path in checkpoints_of(tmp_path):
        load(path, noise.memory)


def test_a_last_checkpoint_makes_no_room(tmp_path: Path) -> None:
    noise = Noise()
    noise.add(9_000)
    writer = CheckpointWriter(tmp_path, 2)
    write(writer, 0, noise.memory)
    with pytest.raises(UserError, match="could not be written: No space left"):
        writer.write(1, {}, {}, Refusing(noise.memory, 1))
    writer.write(2, {}, {}, Refusing(noise.memory, 0))
    writer.wait()
    assert len(checkpoints_of(tmp_path)) == 2


# -- other versions --------------------------------------------------------------------------------


def change_manifest(checkpoint: Path, changes: dict[str, Any], digest: Sequence[str] = ()) -> None:
    """As another version would have written it: its own digest is right."""
    file = checkpoint / "manifest.json"
    content = json.loads(file.read_text())["content"]
    content.update(changes)
    for name in digest:
        data = (checkpoint / name).read_bytes()
        sha = run_state.hashlib.sha256(data).hexdigest()
        content["files"][name] = {"sha256": sha, "nbytes": len(data)}
    sha = run_state.hashlib.sha256(run_state._canonical(content)).hexdigest()
    file.write_text(json.dumps({"sha256": sha, "content": content}))


def test_another_format_says_who_made_it(tmp_path: Path) -> None:
    noise = Noise()
    noise.add(100)
    writer = CheckpointWriter(tmp_path, 1)
    write(writer, 0, noise.memory)
    (path,) = checkpoints_of(tmp_path)
    change_manifest(path, {"format": 3, "fastdqn": "7.0"})
    with pytest.raises(
        DamagedCheckpoint, match=r"has format 3, this fastdqn reads 2; it was made by fastdqn 7\.0"
    ):
        Checkpoint(path)
