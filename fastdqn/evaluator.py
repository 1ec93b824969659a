"""Evaluations of a run while it goes on, of copies of its weights.

Where there are cores to spare a process of its own plays, and training does not wait for it; where
there are none, or where a script's own environment cannot be made elsewhere, the games are played
in between. Either way on the CPU, with one thread, from the evaluation's own seed: the results are
the same, and they carry the step that they belong to. Training is not touched by any of it.
"""

from __future__ import annotations

import json
import os
import select
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from fastdqn.agent import Agent
from fastdqn.checkpoint import MODEL_FILE, load_agent, save_agent
from fastdqn.config import Config
from fastdqn.envs.make import EnvFunction
from fastdqn.envs.vector import VectorEnv
from fastdqn.errors import UserError
from fastdqn.evaluation import evaluate
from fastdqn.held_out import held_out_file, held_out_states, load_states, mean_max_q
from fastdqn.metrics import EvaluationReport
from fastdqn.scores import Evaluation, Game

__all__ = ["Evaluator", "answer", "make_evaluator"]


@dataclass(frozen=True)
class Task:
    """What to evaluate, and the point of the run that it belongs to."""

    steps: int
    frames: int
    baseline: bool
    """Play at random instead: what the agent is to be compared with."""
    held_out: Path | None
    """File of the held-out states."""


def carry_out(agent: Agent, task: Task, env_fn: EnvFunction | None = None) -> EvaluationReport:
    """Evaluate an agent that lives on the CPU."""
    config = agent.config
    began = time.monotonic()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        evaluation = evaluate(
            agent,
            config.evaluation_episodes,
            config.evaluation_frames,
            epsilon=1.0 if task.baseline else None,
            seed=config.seed,
            env_fn=env_fn,
        )
        held_out = mean_max_q(agent, held_out_states(agent, task.held_out, env_fn))
    finally:
        torch.set_num_threads(threads)
    seconds = time.monotonic() - began
    return EvaluationReport(task.steps, task.frames, task.baseline, evaluation, held_out, seconds)


def answer(values: Mapping[str, Any]) -> dict[str, Any]:
    """The process's part: what it answers to a task, in values that JSON can hold."""
    values = dict(values)
    model, held_out = values.pop("model"), values.pop("held_out")
    try:
        task = Task(**values, held_out=None if held_out is None else Path(held_out))
        return asdict(carry_out(load_agent(model, "cpu"), task))
    except UserError as error:
        return {"error": str(error)}


def _report(answer: dict[str, Any]) -> EvaluationReport:
    """The report that such an answer holds."""
    evaluation = answer.pop("evaluation")
    games = tuple(Game(**game) for game in evaluation.pop("games"))
    return EvaluationReport(**answer, evaluation=Evaluation(games, **evaluation))


class Evaluator:
    """Evaluates a run's agents, one evaluation at a time. This one: none at all."""

    def __init__(self) -> None:
        self._finished: list[EvaluationReport] = []

    def begin(
        self, agent: Callable[[], Agent], steps: int, frames: int, *, baseline: bool = False
    ) -> None:
        """Evaluate what `agent` returns, a copy on the CPU, as it is after so many steps."""

    @property
    def is_busy(self) -> bool:
        """Whether an evaluation is under way."""
        return False

    @property
    def has_finished(self) -> bool:
        """Whether there is something to take."""
        return bool(self._finished)

    def take_finished(self) -> tuple[EvaluationReport, ...]:
        """Evaluations that have ended since the last call, in their order. Does not wait."""
        finished, self._finished = tuple(self._finished), []
        return finished

    def wait(self) -> None:
        """Return once nothing is under way."""

    def save_state(self) -> dict[str, Any]:
        """What has not been taken, and what is under way, as JSON and bytes."""
        return {"finished": [asdict(report) for report in self._finished], "under_way": None}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from such a state: what was under way begins anew, and comes out the same."""
        self._finished = [_report(dict(report)) for report in state["finished"]]
        if (task := state["under_way"]) is not None:
            with tempfile.TemporaryDirectory(prefix="fastdqn-evaluation-") as folder:
                model = Path(folder) / MODEL_FILE
                model.write_bytes(task["model"])
                self.begin(
                    lambda: load_agent(model, "cpu"),
                    task["steps"],
                    task["frames"],
                    baseline=task["baseline"],
                )

    def close(self) -> None:
        """Call off what is under way."""


class InBetween(Evaluator):
    """Plays in this process, while training waits."""

    def __init__(self, held_out: Path | None, env_fn: EnvFunction | None) -> None:
        super().__init__()
        self._held_out = held_out
        self._env_fn = env_fn

    def begin(
        self, agent: Callable[[], Agent], steps: int, frames: int, *, baseline: bool = False
    ) -> None:
        """See `Evaluator`."""
        task = Task(steps, frames, baseline, self._held_out)
        self._finished.append(carry_out(agent(), task, self._env_fn))


class Background(Evaluator):
    """Has a process of its own play (see `fastdqn.evaluation_worker`).

    A task goes there as a line of JSON beside a model's file, its result comes back as a line. An
    evaluation that becomes due while one is under way waits for that one, so that never more than
    one copy of the weights is kept. Where the process has died, its task is carried out here.
    """

    def __init__(self, held_out: Path | None) -> None:
        super().__init__()
        self._held_out = held_out
        self._under_way: Task | None = None
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._process: subprocess.Popen[bytes] | None = None

    def _start(self) -> tuple[subprocess.Popen[bytes], Path]:
        """The process, and the file in which it finds the model."""
        if self._process is None or self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="fastdqn-evaluation-")
            # A session of its own: Ctrl-C is for the run, which decides what becomes of this one.
            self._process = subprocess.Popen(
                [sys.executable, "-m", "fastdqn.evaluation_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                start_new_session=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
            )
        return self._process, Path(self._folder.name) / MODEL_FILE

    def begin(
        self, agent: Callable[[], Agent], steps: int, frames: int, *, baseline: bool = False
    ) -> None:
        """See `Evaluator`."""
        self.wait()
        process, model = self._start()
        save_agent(agent(), model)
        self._under_way = Task(steps, frames, baseline, self._held_out)
        task = {**asdict(self._under_way), "held_out": self._held_out and str(self._held_out)}
        assert process.stdin is not None
        try:
            process.stdin.write(json.dumps({"model": str(model), **task}).encode() + b"\n")
            process.stdin.flush()
        except BrokenPipeError:
            self._carry_out_here()

    @property
    def is_busy(self) -> bool:
        """See `Evaluator`."""
        return self._under_way is not None

    def take_finished(self) -> tuple[EvaluationReport, ...]:
        """See `Evaluator`."""
        source = self._start()[0].stdout if self.is_busy else None
        if source is not None and select.select([source], [], [], 0)[0]:
            self.wait()
        return super().take_finished()

    def save_state(self) -> dict[str, Any]:
        """See `Evaluator`."""
        task = self._under_way
        if task is None:
            return super().save_state()
        under_way = {
            "steps": task.steps,
            "frames": task.frames,
            "baseline": task.baseline,
            "model": self._start()[1].read_bytes(),
        }
        return {**super().save_state(), "under_way": under_way}

    def wait(self) -> None:
        """See `Evaluator`."""
        if not self.is_busy:
            return
        source = self._start()[0].stdout
        assert source is not None
        line = source.readline()
        if not line.endswith(b"\n"):
            self._carry_out_here()
            return
        self._under_way = None
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise UserError(f"the evaluation failed: {answer['error']}")
        self._finished.append(_report(answer))

    def _carry_out_here(self) -> None:
        task, self._under_way = self._under_way, None
        assert task is not None
        process, model = self._start()
        warnings.warn(
            f"the process that evaluates has ended with status {process.wait()}; evaluations are "
            "played in between instead",
            RuntimeWarning,
            stacklevel=2,
        )
        self._finished.append(carry_out(load_agent(model, "cpu"), task))

    def close(self) -> None:
        """See `Evaluator`."""
        if self._process is not None and self._folder is not None:
            with self._process as process:  # closes its pipes and waits for it
                process.kill()
            self._folder.cleanup()
            self._process = self._folder = None


def make_evaluator(config: Config, envs: VectorEnv, env_fn: EnvFunction | None = None) -> Evaluator:
    """What evaluates the run of this resolved config; `envs` are those that it learns from.

    Raises `UserError` where the file of held-out states is there, but not what it should be.
    """
    period, budget = config.evaluation_period_steps, config.budget_steps
    if period is None or (budget is not None and budget < period):
        return Evaluator()
    held_out = None
    if config.out is not None and env_fn is None:
        title = str(envs.protocol()["game"])
        held_out = held_out_file(config, Path(config.out) / "held_out", title)
        if held_out.exists():
            load_states(held_out, envs.frame_shape, envs.dtype, config.stack)
    spare_cores = len(os.sched_getaffinity(0)) - _CORES_OF_A_RUN
    return InBetween(held_out, env_fn) if env_fn or spare_cores < 1 else Background(held_out)


# One that steps and one that learns.
_CORES_OF_A_RUN = 2
