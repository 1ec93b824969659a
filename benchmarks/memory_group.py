"""A limit on the memory of processes, page cache included: a control group, of either version.

The group lies inside the one that this process is in, or beside it where version 2 allows no other
place, so that every limit above goes on to hold. It is removed with the context that made it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

__all__ = ["NoMemoryGroup", "entering", "memory_group", "most_held"]

CGROUPS = Path("/sys/fs/cgroup")
MEMBERSHIP = Path("/proc/self/cgroup")


class NoMemoryGroup(Exception):
    """A group cannot be made; says in a line what is missing."""


@contextmanager
def memory_group(
    name: str, limit: int, *, cgroups: Path = CGROUPS, membership: Path = MEMBERSHIP
) -> Iterator[Path]:
    """The folder of a new group whose processes may hold `limit` bytes. Raises `NoMemoryGroup`."""
    group = _parent(cgroups, membership) / name
    try:
        group.mkdir()
    except OSError as error:
        raise NoMemoryGroup(
            f"{group}: {error.strerror}: no memory group can be made there; it takes root, or a "
            "shell that systemd-run --user --scope -p Delegate=yes has started"
        ) from None
    try:
        for file, value in (
            ("memory.limit_in_bytes", limit),  # version 1
            ("memory.swappiness", 0),
            ("memory.max", limit),  # version 2
            ("memory.swap.max", 0),
        ):
            if (group / file).exists():
                (group / file).write_text(str(value))
        yield group
    finally:
        group.rmdir()


def _parent(cgroups: Path, membership: Path) -> Path:
    """Where a group is to be made."""
    try:
        lines = [line.split(":", 2) for line in membership.read_text().splitlines()]
    except OSError as error:
        raise NoMemoryGroup(f"{membership}: {error.strerror}: no control groups here") from None
    for _, controllers, path in lines:
        if "memory" in controllers.split(","):  # version 1
            return cgroups / "memory" / path.lstrip("/")
    for _, controllers, path in lines:
        if controllers == "":
            own = cgroups / path.lstrip("/")
            # Version 2: a group with processes of its own, unless it is the root, has no groups in
            # it that count memory.
            for group in (own,) if own == cgroups else (own, own.parent):
                if "memory" in _read(group / "cgroup.subtree_control").split():
                    return group
            raise NoMemoryGroup(f"{own}: memory is not in cgroup.subtree_control, nor above it")
    raise NoMemoryGroup(f"{membership} names no memory group")


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def entering(group: Path, command: Sequence[str]) -> list[str]:
    """The command, in a process that is in the group before it begins."""
    enter = (
        "import os, sys; open(sys.argv[1] + '/cgroup.procs', 'w').write(str(os.getpid())); "
        "os.execvp(sys.argv[2], sys.argv[2:])"
    )
    return [sys.executable, "-c", enter, str(group), *command]


def most_held(group: Path) -> int:
    """Bytes that the processes held at most, page cache included; 0: the kernel does not tell."""
    text = _read(group / "memory.max_usage_in_bytes") or _read(group / "memory.peak")
    return int(text or 0)
