"""Where a ReplayMemory holds its frames: raw or compressed, in memory or in files.

All stores give the same batches; what each promises of its own is here. The other tests of the
replay memory run on every store too (conftest.py).
"""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fastdqn.replay import ReplayMemory

STORAGES = ["raw", "compressed"]


def sprites(steps: int, seed: int = 0) -> NDArray[np.uint8]:
    """Frames as games draw them: a picture that stays, and a few things that move over it."""
    rng = np.random.default_rng(seed)
    background = np.repeat(rng.integers(0, 256, (84, 1), dtype=np.uint8), 84, axis=1)
    frames = np.repeat(background[None], steps, axis=0)
    for _ in range(6):
        row, column = rng.integers(0, 76, 2)
        for t in range(steps):
            row, column = (row + rng.integers(-1, 2)) % 76, (column + rng.integers(-2, 3)) % 76
            frames[t, row : row + 8, column : column + 5] ^= 90
    frames[steps // 3 :: 7] ^= 17  # and the whole screen flashes
    return frames


def fill(memory: ReplayMemory, frames: NDArray[Any], steps: int, ends: float = 0.02) -> None:
    """Plays on in all environments; the same for the same arguments."""
    rng = np.random.default_rng(steps)
    count = memory.num_envs
    if memory.num_frames == 0:
        memory.begin(frames[rng.integers(0, len(frames), count)])
    for step in range(steps):
        reached = frames[(step + np.arange(count) * 7) % len(frames)]
        ended, cut = rng.random((2, count)) < ends / 2
        actions, rewards = rng.integers(0, 9, count), rng.standard_normal(count)
        memory.append(actions, rewards, reached, ended, cut & ~ended)
        gone = np.flatnonzero(ended | cut)
        if len(gone):
            memory.begin(frames[rng.integers(0, len(frames), len(gone))], gone)


def views(memory: ReplayMemory, draws: int = 5) -> list[NDArray[Any]]:
    """What a memory shows of itself, with its next draws among it."""
    arrays = [memory.valid_indices(), memory.stacks()]
    for draw in range(draws):
        batch = memory.sample(32, channels_last=draw % 2 == 1)
        arrays += [batch.states, batch.next_states, batch.indices]
        arrays += [batch.actions, batch.rewards, batch.discounts]
    return arrays


def assert_same(*memories: ReplayMemory) -> None:
    first, *others = [views(memory) for memory in memories]
    for other in others:
        for left, right in zip(first, other, strict=True):
            np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("eviction", ["fifo", "random"])
@pytest.mark.parametrize("n_step", [1, 3])
def test_all_stores_give_the_same_batches(eviction: str, n_step: int, tmp_path: Path) -> None:
    options: dict[str, Any] = {
        "num_envs": 3,
        "n_step": n_step,
        "eviction": eviction,
        "padding": "repeat",
        "seed": 4,
    }
    memories = [
        ReplayMemory(900, storage=storage, directory=directory, **options)
        for storage in STORAGES
        for directory in (None, tmp_path / storage)
    ]
    frames = sprites(150)
    for _ in range(4):
        for memory in memories:
            fill(memory, frames, 170)
            memory.check_invariants()
        assert_same(*memories)


def test_games_are_small_and_noise_costs_little_more_than_raw() -> None:
    memory = ReplayMemory(3000, storage="compressed")
    fill(memory, sprites(500), 2900)
    assert memory.frame_nbytes_mean < 600
    raw = ReplayMemory(20_000)
    noise = ReplayMemory(20_000, storage="compressed")
    frames = np.random.default_rng(1).integers(0, 256, (50, 84, 84), dtype=np.uint8)
    for each in (raw, noise):
        fill(each, frames, 19_000)
    assert noise.frame_nbytes_mean < 1.01 * raw.frame_nbytes_mean
    assert noise.nbytes_now <= noise.nbytes
    assert noise.nbytes_now < 1.04 * raw.nbytes_now, "2 % from 100,000 frames on"


@pytest.mark.parametrize(
    ("shape", "dtype"),
    [((), "float64"), ((4,), "float32"), ((1, 1), "bool"), ((210, 160, 3), "uint8")],
)
def test_any_frame_is_compressed_without_loss(shape: tuple[int, ...], dtype: str) -> None:
    rng = np.random.default_rng(5)
    frames = rng.integers(0, 2**16, (70, *shape)).astype(dtype)
    frames[20:40] = frames[20]
    memories = [ReplayMemory(100, shape, dtype, storage=storage) for storage in STORAGES]
    for memory in memories:
        fill(memory, frames, 150)
    assert_same(*memories)


@pytest.mark.parametrize("eviction", ["fifo", "random"])
def test_no_number_of_wraps_makes_it_grow(eviction: str) -> None:
    """Frames whose sizes change all the time, through every part of the memory, many times."""
    memory = ReplayMemory(600, (32, 32), num_envs=2, storage="compressed", eviction=eviction)
    rng = np.random.default_rng(3)
    noise = rng.integers(0, 256, (64, 32, 32), dtype=np.uint8)
    held = []
    for turn in range(60):
        frames = noise.copy()
        frames[:, rng.integers(1, 32) :] = 7
        fill(memory, frames, 300)
        if turn % 10 == 0:
            memory.check_invariants()
        held.append(memory.nbytes_now)
    assert max(held[10:]) <= memory.nbytes
    assert max(held[30:]) <= 1.02 * max(held[:30])


# -- files -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("storage", STORAGES)
def test_a_closed_memory_is_opened_and_goes_on(storage: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"num_envs": 2, "seed": 9, "storage": storage}
    frames = sprites(120)
    stays = ReplayMemory(400, **options)
    with ReplayMemory(400, directory=tmp_path / "replay", **options) as memory:
        assert memory.directory == str(tmp_path / "replay")
        fill(memory, frames, 350)
        memory.flush()
        fill(memory, frames, 33)
    fill(stays, frames, 350)
    fill(stays, frames, 33)
    for _ in range(2):
        with ReplayMemory.open(tmp_path / "replay") as memory:
            assert (memory.storage, memory.num_envs, memory.capacity) == (storage, 2, 400)
            memory.check_invariants()
            assert_same(stays, memory)
            for each in (stays, memory):
                fill(each, frames, 90)
            assert_same(stays, memory)


def test_a_closed_memory_says_so() -> None:
    memory = ReplayMemory(50, (2, 2))
    fill(memory, np.ones((3, 2, 2), np.uint8), 20)
    batch = memory.sample(4)
    memory.close()
    memory.close()
    for use in (memory.stacks, memory.flush, lambda: memory.sample(1), lambda: memory.nbytes):
        with pytest.raises(ValueError, match="the replay memory is closed"):
            use()
    with pytest.raises(ValueError, match="closed"):
        memory.begin(np.ones((1, 2, 2), np.uint8))
    assert (batch.states[:, -1] == 1).all()


@pytest.mark.parametrize("storage", STORAGES)
def test_what_was_not_closed_is_not_believed(storage: str, tmp_path: Path) -> None:
    """Also where it once was closed, and then written to."""
    script = f"""
        import os
        import numpy as np
        from fastdqn.replay import ReplayMemory
        frame = np.ones((1, 84, 84), np.uint8)
        memory = ReplayMemory(50, storage={storage!r}, directory={str(tmp_path / "replay")!r})
        memory.begin(frame)
        memory.flush()
        memory.begin(frame)
        os._exit(0)
        """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=True, timeout=60)
    with pytest.raises(ValueError, match="no replay memory was closed in this folder") as refusal:
        ReplayMemory.open(tmp_path / "replay")
    assert str(tmp_path / "replay") in str(refusal.value)
    with ReplayMemory(50, directory=tmp_path / "replay") as memory:  # its room is used again
        memory.begin(np.ones((1, 84, 84), np.uint8))
    with pytest.raises(FileExistsError, match="holds a replay memory already"):
        ReplayMemory(50, directory=tmp_path / "replay")


def test_two_memories_do_not_share_a_folder(tmp_path: Path) -> None:
    memory = ReplayMemory(50, directory=tmp_path)
    message = f"in use by process {os.getpid()}"
    with pytest.raises(BlockingIOError, match=message):
        ReplayMemory(50, directory=tmp_path)
    with pytest.raises(BlockingIOError, match=message):
        ReplayMemory.open(tmp_path)
    del memory
    ReplayMemory.open(tmp_path).close()


def test_a_file_takes_few_descriptors(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    with ReplayMemory(20_000, storage="compressed", directory=tmp_path) as memory:
        noise = np.random.default_rng(0).integers(0, 256, (50, 84, 84), dtype=np.uint8)
        fill(memory, noise, 15_000)
        assert len(os.listdir("/proc/self/fd")) <= before + 3
    assert len(os.listdir("/proc/self/fd")) == before


def damaged(path: Path) -> list[bytes]:
    whole = path.read_bytes()
    middle = len(whole) // 2
    flipped = bytearray(whole)
    flipped[middle] ^= 64
    return [b"", whole[:middle], bytes(flipped), b"x" * len(whole)]


@pytest.mark.parametrize("storage", STORAGES)
def test_damaged_files_are_refused(storage: str, tmp_path: Path) -> None:
    with ReplayMemory(60, storage=storage, directory=tmp_path) as memory:
        fill(memory, sprites(50), 100)
    index = tmp_path / "index"
    whole = index.read_bytes()
    for contents in damaged(index):
        index.write_bytes(contents)
        with pytest.raises(ValueError, match="index"):
            ReplayMemory.open(tmp_path)
        assert index.read_bytes() == contents, "a refusal changes nothing"
    index.write_bytes(whole)
    frames = tmp_path / "frames"
    frames.write_bytes(frames.read_bytes()[:-4096])
    with pytest.raises(ValueError, match="frames"):
        ReplayMemory.open(tmp_path)


def test_damaged_frames_never_lead_out_of_bounds(tmp_path: Path) -> None:
    with ReplayMemory(200, storage="compressed", directory=tmp_path) as memory:
        fill(memory, sprites(80), 190)
    frames = tmp_path / "frames"
    whole = bytearray(frames.read_bytes())
    index = (tmp_path / "index").read_bytes()
    refused = 0
    rng = np.random.default_rng(0)
    for _ in range(40):
        contents = whole.copy()
        for at in rng.integers(0, 20_000, 3):
            contents[at] = rng.integers(0, 256)
        frames.write_bytes(contents)
        (tmp_path / "index").write_bytes(index)
        try:
            with ReplayMemory.open(tmp_path) as memory:
                memory.gather(memory.valid_indices())
        except ValueError:
            refused += 1
    assert refused > 5


@pytest.mark.parametrize("storage", STORAGES)
def test_a_full_disk_is_an_error_and_changes_nothing(storage: str, tmp_path: Path) -> None:
    """A limit on the size of files stands for the end of the disk."""
    script = f"""
        import errno, resource
        import numpy as np
        from fastdqn.replay import ReplayMemory
        resource.setrlimit(resource.RLIMIT_FSIZE, (30 << 20, 30 << 20))
        noise = np.random.default_rng(0).integers(0, 256, (50, 1, 84, 84), dtype=np.uint8)
        no = np.zeros(1, bool)
        stored = 0
        try:
            memory = ReplayMemory(50_000, storage={storage!r}, directory={str(tmp_path)!r})
            memory.begin(noise[0])
            for stored in range(1, 50_000):
                memory.append(np.array([stored]), np.zeros(1), noise[stored % 50], no, no)
        except OSError as error:
            assert error.errno in (errno.EFBIG, errno.ENOSPC), error
            assert {str(tmp_path)!r} in str(error), error
        else:
            raise AssertionError("no error")
        if stored:
            assert memory.num_frames == stored
            memory.check_invariants()
            batch = memory.gather(memory.valid_indices()[-50:])
            for index, state in zip(batch.indices, batch.states[:, -1]):
                assert (state == noise[index % 50, 0]).all()
        print(stored)
        """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        check=True,
        timeout=100,
        capture_output=True,
        text=True,
    )
    assert (int(done.stdout) > 1000) == (storage == "compressed"), "raw: at construction"


def test_too_large_for_the_disk_says_what_is_free(tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"frames: needs \d+ bytes more, of which \d+ are free") as no:
        ReplayMemory(2**32 - 2, directory=tmp_path)
    assert no.value.errno == errno.ENOSPC


# -- snapshots -------------------------------------------------------------------------------------


@pytest.mark.parametrize("saved", STORAGES)
@pytest.mark.parametrize("loaded", [None, *STORAGES])
@pytest.mark.parametrize("in_files", [False, True])
def test_a_snapshot_of_one_store_loads_in_another(
    saved: str, loaded: str | None, in_files: bool, tmp_path: Path
) -> None:
    frames = sprites(100)
    memory = ReplayMemory(500, num_envs=2, seed=2, storage=saved)
    fill(memory, frames, 400)
    memory.save(tmp_path / "memory")
    other = ReplayMemory.load(
        tmp_path / "memory", storage=loaded, directory=tmp_path / "replay" if in_files else None
    )
    assert other.storage == (loaded or saved)
    assert (other.directory is not None) == in_files
    for _ in range(2):
        assert_same(memory, other)
        other.check_invariants()
        for each in (memory, other):
            fill(each, frames, 130)


def test_a_refused_snapshot_leaves_nothing_in_a_folder(tmp_path: Path) -> None:
    memory = ReplayMemory(50, storage="compressed")
    fill(memory, sprites(40), 40)
    path = tmp_path / "memory"
    memory.save(path)
    contents = bytearray(path.read_bytes())
    contents[-2000] ^= 1
    path.write_bytes(contents)
    with pytest.raises(ValueError, match="memory"):
        ReplayMemory.load(path, directory=tmp_path / "replay")
    assert not (tmp_path / "replay" / "index").exists()
