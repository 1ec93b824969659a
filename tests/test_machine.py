"""Free memory as the machine and its control groups have it, and the choice of a device."""

from __future__ import annotations

import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import psutil
import pytest
import torch

from fastdqn.errors import UserError
from fastdqn.machine import (
    Limit,
    choose_device,
    disk_of,
    exact_float32,
    memory_limits,
    resident_bytes,
)

MB = 2**20


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(str(content))


def tightest(membership: Path, cgroups: Path) -> Limit:
    return min(memory_limits(membership, cgroups), key=lambda limit: limit.left)


@pytest.fixture
def membership(tmp_path: Path) -> Path:
    return tmp_path / "cgroup"


def test_without_control_groups_it_is_the_machines(tmp_path: Path, membership: Path) -> None:
    free = psutil.virtual_memory().available
    (limit,) = memory_limits(membership, tmp_path)
    assert limit.name == "this machine's memory"
    assert limit.left == pytest.approx(free, rel=0.2)
    assert not limit.counts_reserved


def test_the_tightest_limit_above_counts(tmp_path: Path, membership: Path) -> None:
    membership.write_text("0::/outer/inner\n")
    cgroups = tmp_path / "v2"
    stat = "anon 5\ninactive_file 1048576\n"
    write(cgroups / "outer" / "inner", memory__max="max", memory__current=5, memory__stat=stat)
    outer = {"memory__current": 30 * MB, "memory__stat": stat}
    write(cgroups / "outer", memory__max=50 * MB, **outer)
    # 50 - 30 and the megabyte of file cache that the kernel would give back.
    assert tightest(membership, cgroups) == (
        "the container's memory limit",
        21 * MB,
        False,
        True,
    )
    write(cgroups / "outer", memory__max=20 * MB, **outer)
    assert tightest(membership, cgroups).left == 0


def test_version_1(tmp_path: Path, membership: Path) -> None:
    membership.write_text("9:cpu:/x\n4:memory,hugetlb:/box\n")
    write(
        tmp_path / "v1" / "memory" / "box",
        memory__limit_in_bytes=50 * MB,
        memory__usage_in_bytes=30 * MB,
        memory__stat="total_inactive_file 0\n",
    )
    assert tightest(membership, tmp_path / "v1").left == 20 * MB


def test_the_processs_own_limits(tmp_path: Path, membership: Path) -> None:
    """In a process of its own: what is left of each is what it can still take."""
    script = f"""
        import mmap, resource
        from pathlib import Path
        from fastdqn.machine import memory_limits
        for name in ("RLIMIT_AS", "RLIMIT_DATA"):
            number = getattr(resource, name)
            resource.setrlimit(number, (4 * 2**30, resource.RLIM_INFINITY))
            before, limit = memory_limits(Path({str(membership)!r}), Path({str(tmp_path)!r}))
            assert limit.name.startswith(name), limit
            assert limit.counts_reserved == (name == "RLIMIT_AS")
            assert 2**30 < limit.left < 4 * 2**30, limit
            taken = mmap.mmap(-1, 2**30, flags=mmap.MAP_PRIVATE)
            after = memory_limits(Path({str(membership)!r}), Path({str(tmp_path)!r}))[-1]
            assert abs(limit.left - after.left - 2**30) < 2**22, (limit, after)
            taken.close()
            try:
                mmap.mmap(-1, limit.left + 2**24, flags=mmap.MAP_PRIVATE)
            except OSError:
                pass
            else:
                raise SystemExit("the limit is not where it was said to be")
            resource.setrlimit(number, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr


def test_the_disk_of_a_folder_that_is_still_to_be_made(tmp_path: Path) -> None:
    disk = disk_of(tmp_path / "not" / "yet")
    assert disk.number == tmp_path.stat().st_dev
    assert disk.left == pytest.approx(shutil.disk_usage(tmp_path).free, rel=0.05)
    assert disk.largest_file is None


def test_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_device("cpu") == torch.device("cpu")
    for name in ("gpu", "meta", "cuda:x"):
        with pytest.raises(UserError, match="expected auto, cpu, cuda or cuda:N"):
            choose_device(name)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(UserError, match="has 0 CUDA devices"):
        choose_device("cuda")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert choose_device("auto") == torch.device("cuda")
    assert choose_device("cuda:1") == torch.device("cuda:1")
    with pytest.raises(UserError, match="has 2 CUDA devices"):
        choose_device("cuda:2")


def test_resident_memory_is_this_processs() -> None:
    assert resident_bytes() == pytest.approx(psutil.Process().memory_info().rss, rel=0.2)


def test_float32_is_exact_inside_and_what_it_was_outside() -> None:
    for before in (True, False):
        torch.backends.cudnn.allow_tf32 = before
        with exact_float32():
            assert not torch.backends.cudnn.allow_tf32
        assert torch.backends.cudnn.allow_tf32 is before
    torch.backends.cudnn.allow_tf32 = True  # PyTorch's default
