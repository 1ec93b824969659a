"""What a run takes of memory and disk, compared with what there is before its first step.

A replay memory fills over hours: a run that the machine cannot hold would be killed long after it
was started. So all that it comes to take is added up beforehand and too much is refused, in one
line that says what would fit. Raw frames have one size. Compressed ones are counted at a size that
play should not exceed, by a table of games (see `frame_sizes`), or, where the game is not in it, at
the largest of the table; other frames at the worst that compression does to any. It measures
nothing: the run's reports show what the frames really take. Environments, worker processes too,
exist before the comparison: what they hold is no longer available.
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fastdqn.config import Config
from fastdqn.errors import UserError
from fastdqn.frame_sizes import GAME_FRAME_SHAPE, budgeted_frame_bytes
from fastdqn.machine import Disk, Limit, disk_of, memory_limits
from fastdqn.units import bytes_text, parse_bytes

__all__ = ["Needs", "check_fits", "needs_of", "transitions_that_fit", "with_sized_replay"]

# What is kept in memory of every frame: its record, its place in the list of what can be drawn, and
# where it is.
RECORD_BYTES = 40
# Compression makes no frame larger than this.
WORST_COMPRESSION = 1.02
# A batch takes about this for each number in its stacks: its slots, float32 copies, activations
# and gradients.
BYTES_PER_BATCH_NUMBER = 40
# What changes from one checkpoint to the next is counted by this.
MOST_STEPS_PER_SECOND = 1_000
# Of every frame, whatever has changed, a checkpoint writes again its place in the list of what can
# be drawn.
LISTED_BYTES = 4
# And whole chunks at both ends of what has changed, in each part of the memory.
CHUNK_ENDS_BYTES = 8 * 2**20
# Everything else that grows after the check: scratch memory of the libraries, logs, an evaluation.
# Measured from 50 to 70 MiB with batches of 32 of Atari's frames.
WORKSPACE_BYTES = 128 * 2**20
# The stack and the heap that glibc reserves for a thread, most of it never filled.
RESERVED_BYTES_PER_THREAD = 72 * 2**20
# A process that plays the evaluations of a run: torch, mostly.
EVALUATION_BYTES = 320 * 2**20
# Of the display and the log writer.
OTHER_THREADS = 2


@dataclass(frozen=True)
class Needs:
    """Bytes that a run comes to take."""

    frame: int
    """Of memory, for each frame that is stored."""
    frame_file: int
    """Of the disk under `replay_dir`, for each frame that is stored."""
    beside: Mapping[str, int]
    """Of memory, beside the replay memory, by what it is for."""
    children: int
    """Of memory, in processes that the run starts later."""
    reserved: int
    """Of address space, that is never filled."""
    written: int
    """Of the disk under `out`: models and checkpoints."""

    @property
    def stored_frame(self) -> int:
        """For each frame that is stored, wherever."""
        return self.frame + self.frame_file


def needs_of(
    config: Config,
    *,
    frame_shape: Sequence[int],
    dtype: np.dtype,
    game: str | None,
    network_bytes: int,
    on_host: bool,
    written: int = 0,
) -> Needs:
    """What the run takes. `network_bytes` is for the networks, gradients and moments.

    `game` is the name that the table of sizes has it under; none: no game. `on_host` is whether
    the networks live in this machine's memory. A resumed run has `written` so many bytes of its
    checkpoints already.
    """
    numbers = math.prod(frame_shape)
    raw = numbers * dtype.itemsize
    frame = raw
    if config.resolved_replay_storage == "compressed":
        frame = math.ceil(raw * WORST_COMPRESSION)
        if game is not None and tuple(frame_shape) == GAME_FRAME_SHAPE and dtype == np.uint8:
            frame = min(frame, budgeted_frame_bytes(game))
    in_files = config.replay_dir is not None
    models = 2 * network_bytes  # one, and a new one beside it
    batch = 2 * config.batch_size * config.stack * raw  # of an update under way
    checkpoints = (
        max(0, _checkpoint_bytes(config, frame + RECORD_BYTES, network_bytes + batch) - written)
        if config.makes_checkpoints
        else 0
    )
    return Needs(
        frame=RECORD_BYTES + (0 if in_files else frame),
        frame_file=frame if in_files else 0,
        beside=_beside(config, numbers, network_bytes if on_host else 0),
        reserved=_reserved(config),
        children=EVALUATION_BYTES if config.evaluation_period_steps is not None else 0,
        written=0 if config.out is None else models + checkpoints,
    )


def _checkpoint_bytes(config: Config, frame: int, network_bytes: int) -> int:
    """Of those that are kept and of one being written beside them: they share the chunks that they
    have in common. `frame` is what one takes with its record, `network_bytes` all that is not the
    replay memory's."""
    steps = float(config.checkpoint_period_steps or math.inf)
    if config.checkpoint_period_minutes is not None:
        steps = min(steps, config.checkpoint_period_minutes * 60 * MOST_STEPS_PER_SECOND)
    capacity = config.replay_capacity
    whole = capacity * frame
    changes = int(min(steps, capacity)) * frame + capacity * LISTED_BYTES + CHUNK_ENDS_BYTES
    if config.replay_eviction == "random":
        # Blocks all over the memory change, and the chunks around them with them: of raw frames as
        # much again and all records, of compressed ones everything.
        raw = config.resolved_replay_storage == "raw"
        changes = 2 * changes + capacity * RECORD_BYTES if raw else whole
    changes = min(changes, whole)
    return whole + network_bytes + config.keep_checkpoints * (changes + network_bytes)


def _beside(config: Config, numbers: int, network_bytes: int) -> dict[str, int]:
    """Memory beside the replay memory, with so many numbers in an observation."""
    return {
        "batches": config.batch_size * config.stack * numbers * BYTES_PER_BATCH_NUMBER,
        "networks": network_bytes,
        "everything else": WORKSPACE_BYTES,
    }


def _reserved(config: Config) -> int:
    threads = OTHER_THREADS + config.prefetch_threads + (config.threads or os.cpu_count() or 1)
    return threads * RESERVED_BYTES_PER_THREAD


def with_sized_replay(config: Config, needs: Needs) -> Config:
    """The config with the capacity that its `replay_memory`, if it gives one, has room for."""
    if config.replay_memory is None:
        return config
    capacity = parse_bytes(config.replay_memory) // needs.stored_frame
    try:
        return dataclasses.replace(config, replay_capacity=capacity, replay_memory=None)
    except UserError as error:
        raise UserError(
            f"replay_memory={config.replay_memory!r}: room for {capacity} frames of up to "
            f"{bytes_text(needs.stored_frame)}; {error}"
        ) from None


def transitions_that_fit(frame_bytes: float) -> int:
    """How many transitions of so many bytes each a default run has room for on this machine."""
    rooms = []
    beside = _beside(Config(), 84 * 84, network_bytes=0)
    for limit in memory_limits():
        reserved = _reserved(Config()) if limit.counts_reserved else 0
        rooms.append(limit.left - sum(beside.values()) - reserved)
    return max(0, int(min(rooms) / frame_bytes))


def check_fits(
    config: Config,
    needs: Needs,
    limits: Sequence[Limit] | None = None,
    disks: Mapping[Path, Disk] | None = None,
) -> None:
    """Raise `UserError`, which says what would fit, for a run that takes more than there is.

    `limits` and `disks` stand for the machine's; folders that are not in `disks` are looked up.
    """
    if config.allow_overcommit:
        return
    for limit in memory_limits() if limits is None else limits:
        _check_memory(config, needs, limit)
    _check_disks(config, needs, disks or {})


def _check_memory(config: Config, needs: Needs, limit: Limit) -> None:
    # Files are mapped as a whole, so that they take address space.
    frame = needs.stored_frame if limit.counts_reserved else needs.frame
    parts = dict(needs.beside)
    if limit.counts_children:
        parts["evaluation"] = needs.children
    if limit.counts_reserved:
        parts["threads"] = needs.reserved
    room = limit.left - sum(parts.values())
    if config.replay_capacity * frame <= room:
        return
    fits = room // frame
    if fits < config.least_replay_capacity:
        fix = (
            "no replay memory fits beside the rest; a smaller batch_size or fewer threads may help"
        )
    else:
        fix = (
            f"--replay-capacity {fits} or --replay-memory {_whole_mib(fits * needs.stored_frame)} "
            f"would fit{_other_storage(config)}"
        )
    parts = {"replay": config.replay_capacity * frame, **parts}
    total = bytes_text(sum(parts.values()))
    raise UserError(
        f"replay_capacity={config.replay_capacity}: the run needs {total} more memory "
        f"({_parts_text(parts)}), and {limit.name} leaves {bytes_text(limit.left)}; {fix}; "
        "--allow-overcommit starts it all the same"
    )


def _check_disks(config: Config, needs: Needs, disks: Mapping[Path, Disk]) -> None:
    wanted: list[tuple[str, Path, int]] = []
    if config.replay_dir is not None:
        size = config.replay_capacity * needs.frame_file
        wanted.append(("replay_dir", Path(config.replay_dir), size))
    if config.out is not None:
        wanted.append(("out", Path(config.out), needs.written))
    taken: dict[int, int] = {}
    for name, folder, size in wanted:
        disk = disks.get(folder) or disk_of(folder)
        before = taken.get(disk.number, 0)
        taken[disk.number] = before + size
        left = disk.left - before
        reason = "has"
        if disk.largest_file is not None and disk.largest_file < min(left, size):
            left, reason = disk.largest_file, "may, by RLIMIT_FSIZE (ulimit -f), take a file of"
        if size <= left:
            continue
        fix = "free some, or give another folder"
        if name == "replay_dir" and (fits := left // needs.frame_file) > 0:
            fix = f"--replay-capacity {fits} would fit"
        elif name == "out" and config.makes_checkpoints:
            fix += "; --checkpoint-period-minutes none keeps no checkpoints of the replay memory"
        raise UserError(
            f"{name}={str(folder)!r}: the run writes {bytes_text(size)} there and its disk "
            f"{reason} {bytes_text(max(left, 0))}; {fix}; --allow-overcommit starts it all the same"
        )


def _other_storage(config: Config) -> str:
    if config.replay_dir is not None:
        return ""
    frames = (
        "" if config.resolved_replay_storage == "compressed" else "--replay-storage compressed or "
    )
    return f"; {frames}--replay-dir DIR takes less memory"


def _parts_text(parts: Mapping[str, int]) -> str:
    return ", ".join(f"{name} {bytes_text(size)}" for name, size in parts.items() if size)


def _whole_mib(nbytes: int) -> str:
    return f"{nbytes // 2**20}MiB"
