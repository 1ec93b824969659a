"""A run's folder: its settings, its logs, its model, its checkpoints.

No earlier run is ever written over. A resumed one goes on in its own folder: its logs are cut back
to what they were at the checkpoint, so that they have neither a gap nor a repeat.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fastdqn.agent import Agent
from fastdqn.checkpoint import MODEL_FILE, save_agent, write_aside
from fastdqn.config import Config
from fastdqn.errors import UserError
from fastdqn.metrics import (
    Counters,
    CsvWriter,
    Report,
    TensorBoardWriter,
    WandbWriter,
    Writer,
    import_wandb,
)
from fastdqn.run_state import (
    Checkpoint,
    CheckpointWriter,
    Replay,
    RunLock,
    checkpoints_of,
    nbytes_of_checkpoints,
)

__all__ = ["NoFolder", "Output", "Resumed", "RunFolder", "make_output"]


class Output(Protocol):
    """Where a run leaves what it found out."""

    @property
    def path(self) -> Path | None: ...

    @property
    def longest_checkpoint_seconds(self) -> float:
        """What a checkpoint took at most, until it was in place."""

    def write(self, report: Report) -> None:
        """Log one report."""

    def save(self, agent: Agent, counters: Counters) -> None:
        """Save the model."""

    def checkpoint(
        self,
        steps: int,
        config: Config,
        state: Mapping[str, Any],
        replay: Replay,
    ) -> None:
        """Save all that the run needs to go on from here; `state` is not written to any more."""

    def wait(self) -> None:
        """Return once the last checkpoint is in place."""

    def close(self) -> None:
        """Nothing more follows."""


class NoFolder:
    """A run that leaves nothing behind."""

    path = None
    longest_checkpoint_seconds = 0.0

    def write(self, report: Report) -> None:
        pass

    def save(self, agent: Agent, counters: Counters) -> None:
        pass

    def checkpoint(self, *_: object) -> None:
        pass

    def wait(self) -> None:
        pass

    def close(self) -> None:
        pass


class RunFolder:
    """`<out>/<game>-<seed>-<date>` with `config.json`, `protocol.json`, the logs, the model and the
    checkpoints. With `resumed`, the folder that this checkpoint is in, and nobody else's meanwhile.
    """

    def __init__(
        self, config: Config, protocol: dict[str, Any], out: Path, resumed: Resumed | None = None
    ) -> None:
        if resumed is None:
            self.path = _new_folder(out, f"{protocol['game']}-{config.seed}")
            self._lock = RunLock(self.path)
            kept: tuple[Path, ...] = ()
        else:
            self.path, self._lock = resumed.checkpoint.run, resumed.lock
            kept = tuple(
                path
                for path in reversed(checkpoints_of(self.path))
                if path.name <= resumed.checkpoint.path.name
            )
            _cut_logs(self.path, resumed.log_nbytes)
        for name, values in (("config", config.to_dict()), ("protocol", protocol)):
            text = json.dumps(values, indent=2) + "\n"
            write_aside(self.path / f"{name}.json", text.encode())
        self._config = config
        self._checkpoints = CheckpointWriter(self.path, config.keep_checkpoints, kept)
        # Opened by the first report: a run that is never started holds no file.
        self._writers: tuple[Writer, ...] = ()

    def write(self, report: Report) -> None:
        """See `Output`. Raises `UserError` where the logs cannot be written."""
        with self._named_refusal():
            if not self._writers:
                self._writers = (CsvWriter(self.path), TensorBoardWriter(self.path))
                if (project := self._config.wandb) is not None:
                    wandb = WandbWriter(project, self.path, self._config.to_dict())
                    self._writers = (*self._writers, wandb)
            for writer in self._writers:
                writer.write(report)

    @contextmanager
    def _named_refusal(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise UserError(f"{self.path}: cannot write the logs: {error.strerror}") from error

    def save(self, agent: Agent, counters: Counters) -> None:
        """See `Output`. The model before it is replaced in one stroke."""
        save_agent(
            agent,
            self.path / MODEL_FILE,
            steps=counters.steps,
            frames=counters.frames,
            updates=counters.updates,
        )

    def checkpoint(
        self,
        steps: int,
        config: Config,
        state: Mapping[str, Any],
        replay: Replay,
    ) -> None:
        """See `Output`. It is complete or not there, whatever happens meanwhile."""
        logs = {path.name: path.stat().st_size for path in _logs(self.path)}
        self._checkpoints.write(steps, config.to_dict(), {**state, "log_nbytes": logs}, replay)

    @property
    def longest_checkpoint_seconds(self) -> float:
        """See `Output`."""
        return self._checkpoints.longest_seconds

    def wait(self) -> None:
        """See `Output`. Raises `UserError` where it could not be put there."""
        self._checkpoints.wait()

    def close(self) -> None:
        """See `Output`."""
        with ExitStack() as last_to_first:
            last_to_first.callback(self._lock.release)
            last_to_first.callback(self.wait)
            for writer in self._writers:  # which write what they still hold
                last_to_first.enter_context(self._named_refusal())
                last_to_first.callback(writer.close)


def _new_folder(out: Path, name: str) -> Path:
    """A folder that did not exist before, named after the run and the time."""
    stem = re.sub(r"[^\w.-]+", "_", name) + time.strftime("-%Y%m%d-%H%M%S")
    for number in range(1, 1000):
        folder = out / (stem if number == 1 else f"{stem}-{number}")
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise UserError(f"out={str(out)!r}: cannot make {folder}: {error.strerror}") from None
        return folder
    raise UserError(f"out={str(out)!r}: a thousand runs named {stem} are there already")


def _logs(folder: Path) -> list[Path]:
    return [*folder.glob("*.csv"), *folder.glob("events.out.tfevents.*")]


def _cut_logs(folder: Path, nbytes: Mapping[str, int]) -> None:
    """Take out of the logs what was written after the checkpoint."""
    try:
        for path in _logs(folder):
            if path.name not in nbytes:
                path.unlink()
            elif path.stat().st_size > nbytes[path.name]:
                os.truncate(path, nbytes[path.name])
    except OSError as error:
        raise UserError(f"{error.filename}: cannot be cut back: {error.strerror}") from None


@dataclass(frozen=True)
class Resumed:
    """What a run goes on from."""

    checkpoint: Checkpoint
    lock: RunLock
    state: Mapping[str, Any]

    @property
    def log_nbytes(self) -> Mapping[str, int]:
        """How long each of the logs was."""
        nbytes: Mapping[str, int] = self.state["log_nbytes"]
        return nbytes

    @property
    def checkpoints_nbytes(self) -> int:
        """What the run's checkpoints take of the disk."""
        return nbytes_of_checkpoints(self.checkpoint.run)


def make_output(config: Config, protocol: dict[str, Any], resumed: Resumed | None) -> Output:
    """The folder of the resumed run, else a new one in `config.out`, or none."""
    if config.wandb is not None:
        import_wandb(config.wandb)  # it is missed before the first step, not at the first report
    if config.out is None and resumed is None:
        return NoFolder()
    return RunFolder(config, protocol, Path(config.out or ""), resumed)
