"""The dtype and the number of threads that suit a machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch

from fastdqn.processor import choose_dtype, choose_threads

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("flags", "images", "expected"),
    [
        ("fpu avx512f avx512_bf16", True, torch.bfloat16),
        ("fpu amx_bf16 amx_tile", True, torch.bfloat16),
        ("fpu avx2 avx512f", True, torch.float32),
        ("fpu avx512_bf16", False, torch.float32),
    ],
)
def test_auto_is_bfloat16_where_the_processor_multiplies_it(
    tmp_path: Path, flags: str, images: bool, expected: torch.dtype
) -> None:
    cpuinfo = tmp_path / "cpuinfo"
    cpuinfo.write_text(f"processor\t: 0\nflags\t\t: {flags}\n\nprocessor\t: 1\n")
    assert choose_dtype("auto", CPU, images=images, cpuinfo=cpuinfo) == expected
    assert choose_dtype("float32", CPU, images=images, cpuinfo=cpuinfo) == torch.float32
    assert choose_dtype("bfloat16", CPU, images=images, cpuinfo=cpuinfo) == torch.bfloat16


def test_auto_is_float32_where_the_system_does_not_say(tmp_path: Path) -> None:
    assert choose_dtype("auto", CPU, images=True, cpuinfo=tmp_path / "none") == torch.float32


@pytest.mark.parametrize(("capability", "bfloat16"), [((7, 5), False), ((8, 0), True)])
def test_auto_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int], bfloat16: bool
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    dtype = choose_dtype("auto", torch.device("cuda"), images=True)
    assert dtype == (torch.bfloat16 if bfloat16 else torch.float32)


def make_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four cores of two threads each, as the kernel lists them: 0 with 4, 1 with 5, ..."""
    for cpu in range(8):
        topology = tmp_path / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 8)
    return tmp_path


def test_one_thread_for_each_core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cpus = make_machine(tmp_path, monkeypatch)
    assert choose_threads(cpus, tmp_path) == 4
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {1, 5, 6})
    assert choose_threads(cpus, tmp_path) == 2
    assert choose_threads(tmp_path / "none", tmp_path) == 3  # no topology known
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert choose_threads(cpus, tmp_path) == 1  # OMP_NUM_THREADS=1


@pytest.mark.parametrize(
    ("quota", "expected"), [("250000", 2), ("50000", 1), ("900000", 4), ("max", 4)]
)
def test_a_containers_share_of_time_limits_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, expected: int
) -> None:
    cpus = make_machine(tmp_path, monkeypatch)
    new, old = tmp_path / "new", tmp_path / "old"
    new.mkdir()
    (new / "cpu.max").write_text(f"{quota} 100000\n")
    (old / "cpu").mkdir(parents=True)
    (old / "cpu" / "cpu.cfs_quota_us").write_text(quota.replace("max", "-1") + "\n")
    (old / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    assert choose_threads(cpus, new) == choose_threads(cpus, old) == expected
