"""What the machine has: memory and disk to take, this process's memory, the device to compute on.

A limit of a container or of the process counts as much as the machine's memory: what goes beyond
any of them is killed or refused.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import psutil
import torch

from fastdqn.errors import UserError

__all__ = [
    "Disk",
    "Limit",
    "choose_device",
    "disk_of",
    "exact_float32",
    "memory_limits",
    "resident_bytes",
]

_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def resident_bytes() -> int:
    """Bytes of memory that this process holds now."""
    return int(psutil.Process().memory_info().rss)


class Limit(NamedTuple):
    """A bound on the memory that this process takes."""

    name: str
    left: int
    """Bytes that it can still take."""
    counts_reserved: bool = False
    """Address space counts that is reserved and never filled."""
    counts_children: bool = False
    """What processes take that this one starts counts as well."""


def memory_limits(membership: Path = _MEMBERSHIP, cgroups: Path = _CGROUPS) -> list[Limit]:
    """All that bounds this process's memory: the machine, control groups, the process's limits.

    Swap does not count as memory: what is drawn at random would be read back from it all the time.
    """
    free = int(psutil.virtual_memory().available)
    limits = [Limit("this machine's memory", free, counts_children=True)]
    for room in _room_in_cgroups(membership, cgroups):
        limits.append(Limit("the container's memory limit", room, counts_children=True))
    held = psutil.Process().memory_info()
    data = getattr(held, "data", held.rss)  # only Linux tells it
    for name, number, now, counts_reserved in (
        ("RLIMIT_DATA (ulimit -d)", resource.RLIMIT_DATA, data, False),
        ("RLIMIT_AS (ulimit -v)", resource.RLIMIT_AS, held.vms, True),
    ):
        most, _ = resource.getrlimit(number)
        if most != resource.RLIM_INFINITY:
            limits.append(Limit(name, max(most - now, 0), counts_reserved))
    return limits


class Disk(NamedTuple):
    """What a file system has room for."""

    number: int
    """Tells file systems apart."""
    left: int
    """Bytes that this user can still write."""
    largest_file: int | None
    """Bytes that this process may write to one file; none: no limit."""


def disk_of(folder: Path) -> Disk:
    """The file system that `folder`, or what will be above it, is on."""
    there = next(path for path in (folder.absolute(), *folder.absolute().parents) if path.exists())
    space = os.statvfs(there)
    most, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    return Disk(
        there.stat().st_dev,
        space.f_bavail * space.f_frsize,
        None if most == resource.RLIM_INFINITY else most,
    )


def _room_in_cgroups(membership: Path, cgroups: Path) -> list[int]:
    """What is left under the limit of each control group that this process is in."""
    try:
        lines = membership.read_text().splitlines()
    except OSError:
        return []
    rooms = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":  # version 2: one hierarchy, a limit may stand at any level
            folder, limit, usage = cgroups, "memory.max", "memory.current"
        elif "memory" in controllers.split(","):  # version 1
            folder, limit, usage = cgroups / "memory", *_VERSION_1
        else:
            continue
        level = folder / path.lstrip("/")
        for group in (level, *level.parents):
            room = _room(group / limit, group / usage, group / "memory.stat")
            if room is not None:
                rooms.append(room)
            if group == folder:
                break
    return rooms


_VERSION_1 = ("memory.limit_in_bytes", "memory.usage_in_bytes")


def _room(limit: Path, usage: Path, statistics: Path) -> int | None:
    """Limit less usage, file caches that the kernel would give back not counted; None: no limit."""
    try:
        most, used = int(limit.read_text()), int(usage.read_text())
        fields = dict(line.split() for line in statistics.read_text().splitlines())
    except (OSError, ValueError):  # absent, or "max"
        return None
    cache = int(fields.get("total_inactive_file", fields.get("inactive_file", 0)))
    return max(most - used + cache, 0)


def choose_device(name: str) -> torch.device:
    """The device called `name`; "auto" is CUDA where there is one, else the CPU.

    Raises `UserError` for a device that torch does not know or this machine does not have.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"device={name!r}: expected auto, cpu, cuda or cuda:N") from None
    if device.type not in ("cpu", "cuda") or (device.type == "cpu" and device.index):
        raise UserError(f"device={name!r}: expected auto, cpu, cuda or cuda:N")
    count = torch.cuda.device_count()
    if device.type == "cuda" and (device.index or 0) >= count:
        raise UserError(f"device={name!r}: this machine has {count} CUDA devices; use cpu or auto")
    return device


@contextmanager
def exact_float32() -> Iterator[None]:
    """Inside, float32 means float32 on a GPU too.

    PyTorch's default has convolutions round their inputs to TF32's 10 bits. Who can do with less
    precision has bfloat16, which is faster still. Matrix products are left as they were: PyTorch's
    own default for them is float32, and what else they are has been asked for.
    """
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cudnn.allow_tf32 = before
