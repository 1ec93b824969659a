"""What the machine has: free memory, this process's memory, the device to compute on.

A container's limit counts as much as the machine's memory: the kernel kills what goes beyond
either.
"""

from __future__ import annotations

from pathlib import Path

import psutil
import torch

from fastdqn.errors import UserError

__all__ = ["available_bytes", "choose_device", "resident_bytes"]

_CGROUPS = Path("/sys/fs/cgroup")
_MEMBERSHIP = Path("/proc/self/cgroup")


def resident_bytes() -> int:
    """Bytes of memory that this process holds now."""
    return int(psutil.Process().memory_info().rss)


def available_bytes(membership: Path = _MEMBERSHIP, cgroups: Path = _CGROUPS) -> int:
    """Bytes this process can still take without swapping or breaking a control group's limit."""
    free = int(psutil.virtual_memory().available)
    return min([free, *_room_in_cgroups(membership, cgroups)])


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
