"""Free memory as the machine and its control groups have it, and the choice of a device."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest
import torch

from fastdqn.errors import UserError
from fastdqn.machine import available_bytes, choose_device, resident_bytes

MB = 2**20


def write(folder: Path, **files: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(str(content))


@pytest.fixture
def membership(tmp_path: Path) -> Path:
    return tmp_path / "cgroup"


def test_without_control_groups_it_is_the_machines(tmp_path: Path, membership: Path) -> None:
    free = psutil.virtual_memory().available
    assert available_bytes(membership, tmp_path) == pytest.approx(free, rel=0.2)


def test_the_tightest_limit_above_counts(tmp_path: Path, membership: Path) -> None:
    membership.write_text("0::/outer/inner\n")
    cgroups = tmp_path / "v2"
    stat = "anon 5\ninactive_file 1048576\n"
    write(cgroups / "outer" / "inner", memory__max="max", memory__current=5, memory__stat=stat)
    outer = {"memory__current": 30 * MB, "memory__stat": stat}
    write(cgroups / "outer", memory__max=50 * MB, **outer)
    # 50 - 30 and the megabyte of file cache that the kernel would give back.
    assert available_bytes(membership, cgroups) == 21 * MB
    write(cgroups / "outer", memory__max=20 * MB, **outer)
    assert available_bytes(membership, cgroups) == 0


def test_version_1(tmp_path: Path, membership: Path) -> None:
    membership.write_text("9:cpu:/x\n4:memory,hugetlb:/box\n")
    write(
        tmp_path / "v1" / "memory" / "box",
        memory__limit_in_bytes=50 * MB,
        memory__usage_in_bytes=30 * MB,
        memory__stat="total_inactive_file 0\n",
    )
    assert available_bytes(membership, tmp_path / "v1") == 20 * MB


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
