"""A run's folder: its settings, its logs, its model. No earlier run is ever written over."""

from __future__ import annotations

import json
import re
import time
from contextlib import ExitStack
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

__all__ = ["NoFolder", "Output", "RunFolder", "make_output"]


class Output(Protocol):
    """Where a run leaves what it found out."""

    @property
    def path(self) -> Path | None: ...

    def write(self, report: Report) -> None:
        """Log one report."""

    def save(self, agent: Agent, counters: Counters) -> None:
        """Save the model."""

    def close(self) -> None:
        """Nothing more follows."""


class NoFolder:
    """A run that leaves nothing behind."""

    path = None

    def write(self, report: Report) -> None:
        pass

    def save(self, agent: Agent, counters: Counters) -> None:
        pass

    def close(self) -> None:
        pass


class RunFolder:
    """`<out>/<game>-<seed>-<date>` with `config.json`, `protocol.json`, the logs and the model."""

    def __init__(self, config: Config, protocol: dict[str, Any], out: Path) -> None:
        self.path = _new_folder(out, f"{protocol['game']}-{config.seed}")
        for name, values in (("config", config.to_dict()), ("protocol", protocol)):
            text = json.dumps(values, indent=2) + "\n"
            write_aside(self.path / f"{name}.json", text.encode())
        self._config = config
        # Opened by the first report: a run that is never started holds no file and no thread.
        self._writers: tuple[Writer, ...] = ()

    def write(self, report: Report) -> None:
        """See `Output`. Raises `UserError` where the logs cannot be written."""
        try:
            if not self._writers:
                self._writers = (CsvWriter(self.path), TensorBoardWriter(self.path))
                if (project := self._config.wandb) is not None:
                    wandb = WandbWriter(project, self.path, self._config.to_dict())
                    self._writers = (*self._writers, wandb)
            for writer in self._writers:
                writer.write(report)
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

    def close(self) -> None:
        """See `Output`."""
        with ExitStack() as writers:
            for writer in self._writers:
                writers.callback(writer.close)


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


def make_output(config: Config, protocol: dict[str, Any]) -> Output:
    """The run's folder in `config.out`, or none."""
    if config.wandb is not None:
        import_wandb(config.wandb)  # it is missed before the first step, not at the first report
    return NoFolder() if config.out is None else RunFolder(config, protocol, Path(config.out))
