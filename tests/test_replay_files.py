"""Files of a ReplayMemory: what is loaded goes on exactly; what is damaged is one clear error."""

from __future__ import annotations

import os
import pickle
import resource
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from replay_scripts import numbers

from fastdqn.replay import ReplayMemory


def small(**options: Any) -> ReplayMemory:
    """A full ring whose seam, walls and an open episode all lie somewhere."""
    script = numbers(19, stack=3, n_step=2, num_envs=2, seed=8, **options)
    for steps, end in [(3, "terminated"), (1, "truncated"), (4, "interrupted")]:
        script.episode(steps, end)
    return script.memory


def saved(memory: ReplayMemory, path: Path) -> bytes:
    memory.save(path)
    return path.read_bytes()


def assert_refused(path: Path) -> str:
    """One ValueError that names the file."""
    with pytest.raises(ValueError, match="memory") as refusal:
        ReplayMemory.load(path)
    message = str(refusal.value)
    assert str(path) in message
    assert "\n" not in message
    return message


@pytest.mark.parametrize("padding", ["zero", "repeat", "reject"])
@pytest.mark.parametrize("reward_clip", ["sign", "clip", "none"])
@pytest.mark.parametrize(
    ("dtype", "eviction"), [("uint8", "fifo"), ("float32", "random"), ("int64", "random")]
)
def test_everything_is_saved(
    padding: str, reward_clip: str, dtype: str, eviction: str, tmp_path: Path
) -> None:
    memory = ReplayMemory(
        61,
        (2, 3),
        dtype,
        num_envs=2,
        stack=3,
        n_step=2,
        discount=0.97,
        padding=padding,
        reward_clip=reward_clip,
        eviction=eviction,
        seed=2**64 - 1,
    )
    path = tmp_path / "memory"
    memory.save(path)
    assert len(ReplayMemory.load(path)) == 0
    random = np.random.default_rng(0)

    def play(*memories: ReplayMemory) -> None:
        frames = random.integers(0, 200, (2, 2, 3)).astype(dtype)
        rewards = random.standard_normal(2)
        ended = random.random(2) < 0.1
        for each in memories:
            each.append(np.array([1, 2]), rewards, frames, ended, ~ended & (rewards > 1.5))
            gone = np.flatnonzero(ended | (rewards > 1.5))
            each.begin(frames[: len(gone)], gone)

    memory.begin(np.ones((2, 2, 3), dtype))
    for _ in range(65):
        play(memory)
    memory.sample(5)
    assert saved(memory, path) == saved(memory, tmp_path / "again"), "saving changes nothing"
    loaded = ReplayMemory.load(path)
    assert saved(loaded, tmp_path / "again") == path.read_bytes()
    loaded.check_invariants()
    for name in ("capacity", "frame_shape", "dtype", "num_envs", "stack", "n_step", "discount"):
        assert getattr(loaded, name) == getattr(memory, name)
    for name in ("padding", "reward_clip", "eviction", "seed", "num_frames", "nbytes"):
        assert getattr(loaded, name) == getattr(memory, name)
    fractions = [0, 0.3, 0.5, 1]
    for _ in range(70):
        left, right = memory.sample(4), loaded.sample(4)
        for name in ("states", "next_states", "actions", "rewards", "discounts", "indices"):
            np.testing.assert_array_equal(getattr(left, name), getattr(right, name))
        np.testing.assert_array_equal(memory.stacks(), loaded.stacks())
        assert (memory.age_quantiles(fractions) == loaded.age_quantiles(fractions)).all()
        play(memory, loaded)
    loaded.check_invariants()


def test_a_file_cut_short_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    whole = saved(small(), path)
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        assert_refused(path)


def test_a_file_with_something_behind_it_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    whole = saved(small(), path)
    for extra in (b"\0", b"\0" * 8, b"x" * 4096, whole):
        path.write_bytes(whole + extra)
        assert_refused(path)


def test_any_flipped_bit_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "memory"
    whole = saved(small(), path)
    for position in range(len(whole)):
        for bit in range(8) if position < 256 else (position % 8,):
            damaged = bytearray(whole)
            damaged[position] ^= 1 << bit
            path.write_bytes(damaged)
            assert_refused(path)


def test_files_of_another_kind_are_refused(tmp_path: Path) -> None:
    """Nothing that a file says is run."""
    path = tmp_path / "memory"
    marker = tmp_path / "executed"

    class Poison:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {marker}",)

    array = tmp_path / "array.npy"
    np.save(array, np.arange(1000))
    for content in (
        b"",
        b"\n",
        pickle.dumps(Poison()),
        array.read_bytes(),
        b"\0" * 10_000,
        b"\xff" * 10_000,
        np.random.default_rng(0).bytes(10_000),
    ):
        path.write_bytes(content)
        assert_refused(path)
    assert not marker.exists()


@pytest.mark.parametrize("claim", [2**60, 2**61, 2**62, 2**63, 2**64 - 1, 2**32, 2**31, 2**40])
def test_a_header_that_claims_too_much_is_not_believed(claim: int, tmp_path: Path) -> None:
    """Wherever the claim stands; in a process that may not allocate much, and at once."""
    path = tmp_path / "memory"
    whole = saved(small(), path)
    limits = resource.getrlimit(resource.RLIMIT_AS)
    now = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (now + 2**28, limits[1]))
    try:
        for position in range(0, min(len(whole), 400) - 8, 4):
            damaged = bytearray(whole)
            damaged[position : position + 8] = claim.to_bytes(8, "little")
            if damaged == whole:
                continue
            path.write_bytes(damaged)
            assert_refused(path)
    finally:
        resource.setrlimit(resource.RLIMIT_AS, limits)


def crc_32c(data: bytes) -> int:
    """The checksum of the format, bit by bit."""
    total = 0xFFFFFFFF
    for byte in data:
        total ^= byte
        for _ in range(8):
            total = total >> 1 ^ (0x82F63B78 if total & 1 else 0)
    return total ^ 0xFFFFFFFF


def payloads(whole: bytes) -> dict[str, tuple[int, int]]:
    """Where each section's payload lies: name -> (offset, size); see csrc/fastdqn/snapshot.hpp."""
    found = {}
    offset = 16
    while offset < len(whole):
        name = whole[offset : offset + 8].rstrip(b"\0").decode()
        size = int.from_bytes(whole[offset + 8 : offset + 16], "little")
        assert (
            crc_32c(whole[offset : offset + 16]).to_bytes(4, "little")
            == (whole[offset + 16 : offset + 20])
        )
        found[name] = (offset + 20, size)
        offset += 20 + size + 4
    return found


def exercise(memory: ReplayMemory) -> None:
    """Reads and writes whatever a memory lets itself be read and written."""
    memory.check_invariants()
    shape, dtype = memory.frame_shape, memory.dtype
    count = memory.num_envs
    no = np.zeros(count, np.bool_)
    frames = np.zeros((count, *shape), dtype)
    for _ in range(3):
        if len(memory):
            memory.gather(memory.valid_indices())
            memory.gather(memory.valid_indices(), channels_last=True)
            memory.sample(3)
        memory.begin(frames)
        for _ in range(memory.capacity // count // 2 + 1):
            memory.append(np.zeros(count, np.int64), np.zeros(count), frames, no, no)
            memory.check_invariants()


@pytest.mark.parametrize("section", ["config", "state", "envs", "starts", "records", "drawable"])
def test_a_forged_file_is_refused_or_harmless(section: str, tmp_path: Path) -> None:
    """Checksums that fit prove nothing: no value in any place may lead out of the arrays."""
    path = tmp_path / "memory"
    whole = saved(small(), path)
    offset, size = payloads(whole)[section]
    random = np.random.default_rng(0)
    values = [0, 1, 2, 3, 17, 18, 19, 20, 255, 2**16 - 1, 2**31, 2**32 - 2, 2**32 - 1, 2**60, 2**63]
    refused = 0
    for _ in range(400):
        forged = bytearray(whole)
        for _ in range(int(random.integers(1, 4))):
            width = int(random.choice([1, 2, 4, 8]))
            place = offset + int(random.integers(0, size // width)) * width
            value = int(random.choice(len(values)))
            forged[place : place + width] = (values[value] % 2 ** (8 * width)).to_bytes(
                width, "little"
            )
        payload = bytes(forged[offset : offset + size])
        forged[offset + size : offset + size + 4] = crc_32c(payload).to_bytes(4, "little")
        path.write_bytes(forged)
        try:
            memory = ReplayMemory.load(path)
        except (ValueError, MemoryError) as error:
            assert "\n" not in str(error)  # noqa: PT017
            refused += 1
            continue
        if memory.capacity < 1000:
            exercise(memory)
    assert refused > 100


def test_what_is_not_there_or_not_a_file(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ReplayMemory.load(tmp_path / "nothing")
    with pytest.raises(ValueError, match="not a regular file"):
        ReplayMemory.load(tmp_path)
    with pytest.raises(OSError, match="no folder"):
        small().save(tmp_path / "no folder" / "memory")
    with pytest.raises(IsADirectoryError):
        small().save(tmp_path)


def test_a_failed_save_leaves_the_last_one(tmp_path: Path) -> None:
    """A disk that fills up half way: an error, the old file whole, nothing left beside it."""
    script = f"""
        import resource, signal
        from fastdqn.replay import ReplayMemory
        import numpy as np
        path = {str(tmp_path / "memory")!r}
        memory = ReplayMemory(2000, (32, 32), stack=2)
        memory.begin(np.ones((1, 32, 32), np.uint8))
        memory.save(path)
        no = np.zeros(1, bool)
        for step in range(3000):
            memory.append(np.array([step]), np.zeros(1), np.ones((1, 32, 32), np.uint8), no, no)
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, resource.RLIM_INFINITY))
        try:
            memory.save(path)
        except OSError as error:
            assert path in str(error), error
        else:
            raise SystemExit("the save succeeded")
        assert ReplayMemory.load(path).num_frames == 1
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
        memory.save(path)
        assert ReplayMemory.load(path).num_frames == 2000
    """
    run(script)
    assert [entry.name for entry in tmp_path.iterdir()] == ["memory"]


def test_a_kill_at_any_moment_leaves_a_whole_file(tmp_path: Path) -> None:
    """The last complete save is there; what the killed one left stands in nobody's way."""
    path = tmp_path / "memory"
    script = f"""
        from fastdqn.replay import ReplayMemory
        import numpy as np
        memory = ReplayMemory(2000, (64, 64), stack=2)
        memory.begin(np.ones((1, 64, 64), np.uint8))
        no = np.zeros(1, bool)
        for step in range(2000):
            memory.append(np.array([step]), np.zeros(1), np.ones((1, 64, 64), np.uint8), no, no)
        while True:
            memory.sample(1)
            memory.save({str(path)!r})
            print("saved", flush=True)
    """
    for kill in range(6):
        with subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script)], stdout=subprocess.PIPE
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == b"saved\n"
            time.sleep(0.007 * kill)
            process.kill()
        loaded = ReplayMemory.load(path)
        loaded.check_invariants()
        assert loaded.num_frames == 2000
    loaded.save(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["memory"]


def run(script: str) -> str:
    finished = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr[-3000:]
    return finished.stdout


def test_a_save_follows_a_link_or_replaces_it_but_never_tears(tmp_path: Path) -> None:
    target = tmp_path / "target"
    memory = small()
    memory.save(target)
    link = tmp_path / "memory"
    link.symlink_to(target)
    memory.sample(3)
    memory.save(link)
    assert ReplayMemory.load(link).sample(5).indices.tolist() == memory.sample(5).indices.tolist()
    ReplayMemory.load(target)


def test_saving_and_loading_take_little_memory_beside(tmp_path: Path) -> None:
    """At most 64 MiB more than the memory itself, for a memory four times as large."""
    printed = run(
        f"""
        import resource
        from fastdqn.replay import ReplayMemory
        import numpy as np
        def peak():
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        memory = ReplayMemory(36_000, (84, 84))
        frame = np.ones((1, 84, 84), np.uint8)
        memory.begin(frame)
        no = np.zeros(1, bool)
        for step in range(36_000):
            memory.append(np.array([step]), np.zeros(1), frame, no, no)
        full = peak()
        memory.save({str(tmp_path / "memory")!r})
        print(peak() - full)
        del memory
        loaded = ReplayMemory.load({str(tmp_path / "memory")!r})
        print(peak() - full)
        assert loaded.num_frames == 36_000
        """
    )
    save, load = (float(line) for line in printed.split())
    assert save < 64
    assert load < 64
