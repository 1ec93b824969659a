"""What to compute with: the dtype that suits the device, and the number of threads on a CPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

import torch

__all__ = ["choose_dtype", "choose_threads"]

_BFLOAT16_FLAGS = {"avx512_bf16", "amx_bf16"}


def choose_dtype(
    precision: Literal["auto", "float32", "bfloat16"],
    device: torch.device,
    *,
    images: bool,
    cpuinfo: Path = Path("/proc/cpuinfo"),
) -> torch.dtype:
    """What a network computes in. "auto" is bfloat16 where that is faster: for images, on a device
    that multiplies such numbers by instructions of its own."""
    if precision == "auto":
        precision = "bfloat16" if images and _multiplies_bfloat16(device, cpuinfo) else "float32"
    return torch.bfloat16 if precision == "bfloat16" else torch.float32


def _multiplies_bfloat16(device: torch.device, cpuinfo: Path) -> bool:
    if device.type == "cuda":
        return torch.cuda.get_device_capability(device) >= (8, 0)
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:  # another system, which does not say
        return False
    flags = next((line.split() for line in lines if line.startswith("flags")), [])
    return not _BFLOAT16_FLAGS.isdisjoint(flags)


def choose_threads(
    cpus: Path = Path("/sys/devices/system/cpu"), group: Path = Path("/sys/fs/cgroup")
) -> int:
    """One thread for each core that this process may use: two on a core share its arithmetic units,
    and threads beyond the share of time that a container has stop all others, who wait for them.

    Never more than PyTorch has, which `OMP_NUM_THREADS` sets.
    """
    threads = torch.get_num_threads()
    if not hasattr(os, "sched_getaffinity"):
        return threads
    cores = {_siblings(cpus / f"cpu{cpu}", cpu) for cpu in os.sched_getaffinity(0)}
    return max(1, int(min(threads, len(cores), _time_share(group))))


def _siblings(cpu: Path, number: int) -> str:
    """The processors on this one's core, as the kernel lists them."""
    try:
        return (cpu / "topology" / "thread_siblings_list").read_text().strip()
    except OSError:
        return str(number)


def _time_share(group: Path) -> float:
    """Processors' worth of time in a container: version 2 of control groups, or version 1."""
    try:
        try:
            quota, period = (group / "cpu.max").read_text().split()
        except OSError:
            quota = (group / "cpu" / "cpu.cfs_quota_us").read_text()
            period = (group / "cpu" / "cpu.cfs_period_us").read_text()
        share = int(quota) / int(period)
    except (OSError, ValueError):  # absent, or "max"
        return float("inf")
    return share if share > 0 else float("inf")
