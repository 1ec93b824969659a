"""Checkpoints: all that a run needs to go on exactly, in folders of its own folder.

    RUN/run.lock                      held by the process that trains; names it
    RUN/checkpoints/step-000000120000/
        manifest.json                 settings, counters, generators and so on; digests of the files
        arrays.safetensors            weights, optimizer, states of the environments
        replay.fastdqn                the replay memory: its small parts, and where the rest is
    RUN/checkpoints/chunks/           what checkpoints share; written once, never changed

A checkpoint is written aside, synced, and renamed into place as a whole: one whose name is right is
complete, whenever the process was killed. Nothing in it is believed before it is checked, nothing
is unpickled. What checkpoints share is looked at in turns, and written again where the disk has
damaged it. docs/resuming.md has the formats; what the parts of the state mean is the trainer's.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

import fastdqn
from fastdqn.errors import UserError
from fastdqn.replay import ReplayMemory

__all__ = [
    "LOOKING_TURNS",
    "Checkpoint",
    "CheckpointWriter",
    "DamagedCheckpoint",
    "RunLock",
    "checkpoints_of",
    "nbytes_of_checkpoints",
]

LOOKING_TURNS = 16
"""Each chunk that checkpoints share is read from the disk, and compared with its digest, once in so
many checkpoints."""

FOLDER = "checkpoints"
CHUNKS = "chunks"
MANIFEST_FILE = "manifest.json"
ARRAYS_FILE = "arrays.safetensors"
REPLAY_FILE = "replay.fastdqn"
LOCK_FILE = "run.lock"
_FORMAT = 2
_NAME = re.compile(r"step-\d{12,}")
_LARGEST_MANIFEST_BYTES = 64 * 2**20
_PIECE_BYTES = 2**20
_T = TypeVar("_T")


class DamagedCheckpoint(UserError):
    """A checkpoint that is not whole, or that this version cannot read."""


class RunLock:
    """The right to write in a run's folder, held by one process at a time until it ends."""

    _descriptor = -1

    def __init__(self, run: Path) -> None:
        path = run / LOCK_FILE
        try:
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise UserError(f"{path}: cannot be opened: {error.strerror}") from None
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(self._descriptor, 200, 0).decode(errors="replace").strip()
            self.release()
            raise UserError(
                f"{run}: in use by {holder or 'another process'}; stop that run before this one"
            ) from None
        except OSError:
            pass  # a file system without locks grants it to all
        with suppress(OSError):  # it is held on a full disk, too, without a name
            os.ftruncate(self._descriptor, 0)
            name = f"process {os.getpid()} on {socket.gethostname()}\n"
            os.pwrite(self._descriptor, name.encode(), 0)

    def __del__(self) -> None:
        self.release()

    def release(self) -> None:
        """Let others in."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


class Checkpoint:
    """One checkpoint on disk. Raises `DamagedCheckpoint` where it is not whole.

    The manifest is checked at once, and the sizes of the files; their contents as they are read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        content = self._read_manifest()
        self._version = content.get("fastdqn")
        if content.get("format") != _FORMAT:
            raise self._damaged(
                f"it has format {content.get('format')!r}, this fastdqn reads {_FORMAT}; "
                + self._versions()
            )
        self.config: dict[str, Any] = content["config"]
        self._state = content["state"]
        self._files: dict[str, Any] = content["files"]
        for name, file in self._files.items():
            try:
                nbytes = (path / name).stat().st_size
            except OSError as error:
                raise self._damaged(f"{name}: {error.strerror}") from None
            if nbytes != file["nbytes"]:
                raise self._damaged(f"{name} has {nbytes} bytes; expected {file['nbytes']}")

    @property
    def run(self) -> Path:
        """The folder of the run."""
        return self.path.parent.parent

    def load_memory(self, settings: Mapping[str, Any]) -> ReplayMemory:
        """The replay memory, which must have been made with these settings.

        `storage` and `directory` alone are where its frames go now, whatever was saved. OSError
        where that directory cannot be had.
        """
        path = self.path / REPLAY_FILE
        where = {name: settings[name] for name in ("storage", "directory")}
        try:
            if _digest(path) != self._files[REPLAY_FILE]["sha256"]:
                raise self._damaged(f"{REPLAY_FILE} differs from its digest")
            memory = ReplayMemory.load(path, self.path.parent / CHUNKS, **where)
        except DamagedCheckpoint:
            raise
        except (ValueError, OSError) as error:
            if isinstance(error, OSError) and where["directory"] is not None:
                raise
            raise DamagedCheckpoint(str(error)) from None
        for name, expected in settings.items():
            found = getattr(memory, name)
            if found != expected:
                raise self._damaged(f"{REPLAY_FILE} has {name}={found!r}; the run has {expected!r}")
        return memory

    def state(self) -> Any:
        """What was saved, with its arrays, which are read and checked now."""
        path = self.path / ARRAYS_FILE
        try:
            if _digest(path) != self._files[ARRAYS_FILE]["sha256"]:
                raise self._damaged(f"{ARRAYS_FILE} differs from its digest")
            arrays = load_file(path)
        except (SafetensorError, OSError, ValueError) as error:
            raise self._damaged(f"{ARRAYS_FILE}: {error}") from None
        return _with_arrays(self._state, arrays)

    @contextmanager
    def understood(self) -> Iterator[None]:
        """Whoever makes something of the state does so inside the `with`: what it lacks, or has
        otherwise than this version expects, is this checkpoint's fault."""
        try:
            yield
        except UserError:
            raise
        except (LookupError, TypeError, ValueError, AttributeError, RuntimeError) as error:
            raise self.misunderstood(error) from error

    def misunderstood(self, error: Exception) -> DamagedCheckpoint:
        """What to raise for such a fault."""
        what = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        return self._damaged(f"not what this version expects: {what}; {self._versions()}")

    def _versions(self) -> str:
        made_by = self._version if isinstance(self._version, str) else "an unknown version"
        return f"it was made by fastdqn {made_by[:40]}, this is {fastdqn.__version__}"

    def _read_manifest(self) -> dict[str, Any]:
        path = self.path / MANIFEST_FILE
        try:
            with path.open("rb") as file:
                if os.fstat(file.fileno()).st_size > _LARGEST_MANIFEST_BYTES:
                    raise self._damaged(f"{MANIFEST_FILE} is larger than any manifest")
                manifest = json.loads(file.read())
            content: dict[str, Any] = manifest["content"]
            if manifest["sha256"] != hashlib.sha256(_canonical(content)).hexdigest():
                raise self._damaged(f"{MANIFEST_FILE} differs from its digest")
        except OSError as error:
            raise self._damaged(f"{MANIFEST_FILE}: {error.strerror}") from None
        except (LookupError, TypeError, ValueError, RecursionError) as error:
            if isinstance(error, DamagedCheckpoint):
                raise
            raise self._damaged(f"{MANIFEST_FILE} is not a manifest") from None
        return content

    def _damaged(self, what: str) -> DamagedCheckpoint:
        return DamagedCheckpoint(f"{self.path}: {what}")


def checkpoints_of(run: Path) -> list[Path]:
    """The checkpoints in a run's folder, newest first."""
    folder = run / FOLDER
    try:
        return sorted(path for path in folder.iterdir() if _NAME.fullmatch(path.name))[::-1]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{folder}: cannot be read: {error.strerror}") from None


def nbytes_of_checkpoints(run: Path) -> int:
    """Bytes that the files of a run's checkpoints have now."""
    nbytes = 0
    for path in (run / FOLDER).rglob("*"):
        with suppress(OSError):  # it may go at any time
            nbytes += path.stat().st_size if path.is_file() else 0
    return nbytes


class Replay(Protocol):
    """What is needed of a replay memory."""

    def save_in_chunks(
        self, path: Path, chunks: Path, previous: Path | None, damaged: Sequence[str]
    ) -> list[str]:
        """See `fastdqn.ReplayMemory`."""


class CheckpointWriter:
    """Writes a run's checkpoints and removes all but the last `keep`.

    A checkpoint is taken at once, as far as the system's memory; a thread brings it to the disk and
    puts it in place while the run goes on. `kept` are the checkpoints that the run goes on from,
    oldest first: whatever else is in the folder is no part of it. Where the disk is full older ones
    make room, but for the last. What a user should know of is a `RuntimeWarning`.
    """

    def __init__(self, run: Path, keep: int, kept: Sequence[Path] = ()) -> None:
        self._folder = run / FOLDER
        self._chunks = self._folder / CHUNKS
        self._keep = keep
        self._kept = list(kept)
        self._damaged: list[str] = []  # chunks that the next checkpoint writes again
        self._turn = 0  # whose chunks are looked at next
        self._under_way: threading.Thread | None = None
        self._error: UserError | None = None
        self._warnings: list[str] = []  # of the thread
        self.longest_seconds = 0.0
        """What a checkpoint took at most, from its beginning until it was in place."""

    def write(self, steps: int, config: Mapping[str, Any], state: Any, replay: Replay) -> None:
        """Take a checkpoint. `state` is of what JSON holds, bytes and arrays, and is not written to
        any more.

        Raises `UserError` where the system refuses, also for the one before this; the earlier ones
        are as they were, but for those that made room.
        """
        self.wait()
        began = time.monotonic()
        final = self._folder / f"step-{steps:012}"
        aside = final.with_name(final.name + ".partial")

        def take() -> list[str]:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            self._chunks.mkdir(exist_ok=True)
            before = self._kept[-1] / REPLAY_FILE if self._kept else None
            return replay.save_in_chunks(aside / REPLAY_FILE, self._chunks, before, self._damaged)

        try:
            with self._refusals(final, aside):
                names = self._making_room(take)
        finally:
            self._tell()
        self._damaged = []

        def finish() -> None:
            try:
                with self._refusals(final, aside):
                    self._finish(final, aside, names, dict(config), state)
            except UserError as error:
                self._error = error
            self.longest_seconds = max(self.longest_seconds, time.monotonic() - began)

        self._under_way = threading.Thread(target=finish, name="checkpoint")
        self._under_way.start()

    def wait(self) -> None:
        """Return once the last checkpoint is in place. Raises `UserError` where it could not be."""
        if self._under_way is not None:
            self._under_way.join()
            self._under_way = None
        self._tell()
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def _tell(self) -> None:
        told, self._warnings = self._warnings, []
        for text in told:
            warnings.warn(text, RuntimeWarning, stacklevel=2)

    def _making_room(self, write: Callable[[], _T], beside: Path | None = None) -> _T:
        """Where the disk is full, try again without the oldest checkpoint, as long as one stays."""
        while True:
            try:
                return write()
            except (OSError, SafetensorError) as error:
                if len(self._kept) < 2 or not _is_of_a_full_disk(error):
                    raise
                oldest = self._kept.pop(0)
                self._warnings.append(f"{oldest}: removed, as the disk has no room for one more")
                self._remove_others(beside)

    @contextmanager
    def _refusals(self, final: Path, aside: Path) -> Iterator[None]:
        try:
            yield
        except (OSError, SafetensorError, ValueError) as error:
            shutil.rmtree(aside, ignore_errors=True)
            what = error.strerror if isinstance(error, OSError) else None
            raise UserError(f"{final}: could not be written: {what or error}") from error

    def _finish(
        self, final: Path, aside: Path, names: list[str], config: dict[str, Any], state: Any
    ) -> None:
        arrays: dict[str, NDArray[Any]] = {}
        plain = _without_arrays(state, arrays, "")

        def write() -> None:
            save_file(arrays, aside / ARRAYS_FILE)
            files = {
                name: {"sha256": _digest(aside / name), "nbytes": (aside / name).stat().st_size}
                for name in (ARRAYS_FILE, REPLAY_FILE)
            }
            content = {
                "format": _FORMAT,
                "fastdqn": fastdqn.__version__,
                "config": config,
                "state": plain,
                "files": files,
            }
            digest = hashlib.sha256(_canonical(content)).hexdigest()
            (aside / MANIFEST_FILE).write_text(json.dumps({"sha256": digest, "content": content}))
            for name in names:
                _sync(self._chunks / name)
            _sync(self._chunks)
            for name in (*files, MANIFEST_FILE):
                _sync(aside / name)
            _sync(aside)

        self._making_room(write, aside)
        if final.exists():  # damaged, or of a run that went another way from here
            final.rename(self._outdated(final))
        aside.rename(final)
        _sync(self._folder)
        # One that somebody has removed is none.
        earlier = [path for path in self._kept if path != final and path.is_dir()]
        self._kept = [*earlier, final][-self._keep :]
        self._remove_others()
        self._look_at_chunks()

    def _remove_others(self, beside: Path | None = None) -> None:
        """Remove what is no part of the checkpoints that are kept, nor of the one `beside` them."""
        stay = [*self._kept, *([] if beside is None else [beside])]
        for path in self._folder.iterdir():
            if path not in stay and path != self._chunks:
                # Renamed first: what a kill leaves half removed has no checkpoint's name.
                if _NAME.fullmatch(path.name):
                    path = path.rename(self._outdated(path))
                shutil.rmtree(path, ignore_errors=True)
        needed: set[str] = set()
        for path in stay:
            with suppress(ValueError, OSError):  # damaged: nobody can go on from it
                needed.update(ReplayMemory.chunks_of(path / REPLAY_FILE))
        for path in self._chunks.iterdir():
            if path.name not in needed:
                path.unlink()

    def _look_at_chunks(self) -> None:
        """Find what the disk has damaged of what the next checkpoint would share.

        Written again, it is whole for all checkpoints that have it. What the memory does not hold
        any more cannot be.
        """
        with suppress(ValueError, OSError):  # gone or damaged: then nothing is shared with it
            self._damaged = ReplayMemory.damaged_chunks(
                self._kept[-1] / REPLAY_FILE, self._chunks, self._turn, LOOKING_TURNS
            )
        self._turn += 1
        self._warnings += [
            f"{self._chunks / name}: damaged on the disk; the next checkpoint writes it again"
            for name in self._damaged
        ]

    @staticmethod
    def _outdated(path: Path) -> Path:
        target = path.with_name(path.name + ".outdated")
        shutil.rmtree(target, ignore_errors=True)
        return target


def _canonical(content: Any) -> bytes:
    return json.dumps(content, sort_keys=True, separators=(",", ":")).encode()


def _digest(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while piece := file.read(_PIECE_BYTES):
            digest.update(piece)
    return digest.hexdigest()


def _is_of_a_full_disk(error: OSError | SafetensorError) -> bool:
    numbers = (errno.ENOSPC, errno.EDQUOT)
    if isinstance(error, OSError):
        return error.errno in numbers
    return any(f"os error {number}" in str(error) for number in numbers)  # has it as text alone


def _sync(path: Path) -> None:
    """Bring a file or folder to the disk. There the system may forget it: it is not read again
    before it is looked at for damage, and then it should come from the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
        if path.is_file():
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


# Arrays and bytes are kept apart from the JSON, which has {"array": key} and {"bytes": key} for
# them; a dictionary of the state itself that has such a key only would be misread.
_ARRAY, _BYTES = "array", "bytes"


def _without_arrays(value: Any, arrays: dict[str, NDArray[Any]], place: str) -> Any:
    """`value` as JSON, with its arrays and bytes moved to `arrays`, by where they were."""
    if isinstance(value, Mapping):
        assert set(value) not in ({_ARRAY}, {_BYTES}), place
        return {
            str(name): _without_arrays(item, arrays, f"{place}.{name}" if place else str(name))
            for name, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_without_arrays(item, arrays, f"{place}.{i}") for i, item in enumerate(value)]
    if isinstance(value, bytes):
        arrays[place] = np.frombuffer(value, np.uint8)
        return {_BYTES: place}
    if isinstance(value, np.ndarray):
        arrays[place] = np.ascontiguousarray(value).reshape(value.shape)
        return {_ARRAY: place}
    return value


def _with_arrays(value: Any, arrays: Mapping[str, NDArray[Any]]) -> Any:
    """The opposite of `_without_arrays`."""
    if isinstance(value, dict):
        if set(value) == {_ARRAY}:
            return arrays[value[_ARRAY]]
        if set(value) == {_BYTES}:
            return arrays[value[_BYTES]].tobytes()
        return {name: _with_arrays(item, arrays) for name, item in value.items()}
    if isinstance(value, list):
        return [_with_arrays(item, arrays) for item in value]
    return value
