"""Evaluations during a run: what they find, what they leave alone, the process that plays."""

from __future__ import annotations

import csv
import io
import math
import os
import signal
import subprocess
import sys
import time
import zipfile
from contextlib import closing
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import psutil
import pytest
import torch

from fastdqn import evaluator as evaluator_module
from fastdqn.checkpoint import load_agent
from fastdqn.config import Config
from fastdqn.errors import UserError
from fastdqn.evaluation import evaluate
from fastdqn.evaluator import Background, InBetween
from fastdqn.held_out import held_out_file, held_out_states, mean_max_q
from fastdqn.metrics import EvaluationReport
from fastdqn.trainer import Trainer, train


def cartpole(**settings: Any) -> Config:
    values = {"env": "CartPole-v1", "steps": 600, "learning_starts_steps": 50, "out": None}
    evaluations = {"evaluation_period_steps": 200, "evaluation_episodes": 3}
    return Config.preset(
        "classic", **{**values, "log_period_steps": 100, **evaluations, **settings}
    )


def breakout(**settings: Any) -> Config:
    values = {"game": "Breakout", "steps": 160, "learning_starts_steps": 100, "out": None}
    evaluations = {"evaluation_period_steps": 80, "evaluation_frames": 400}
    small = {"replay_capacity": 2_000, "batch_size": 4, "threads": 1, "log_period_steps": 50}
    return Config(**{**values, **small, **evaluations, **settings})


@pytest.fixture(params=["in between", "background"])
def cores(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs the test on a machine without and with cores to spare."""
    count = 2 if request.param == "in between" else 16
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(count)), raising=False)
    return str(request.param)


def weights(trainer: Trainer) -> list[torch.Tensor]:
    return list(trainer.learner.online.parameters())


@pytest.mark.parametrize("make", [cartpole, breakout])
def test_training_is_the_same_with_and_without(make: Any, cores: str) -> None:
    results = []
    for period in (None, 80):
        trainer = Trainer(make(evaluation_period_steps=period))
        reports = list(trainer.run())
        games = [game for report in reports for game in report.finished]
        drawn = trainer.memory.sample(64).indices.tolist()
        results.append((weights(trainer), games, [r.loss for r in reports], drawn))
        found = sum(len(report.evaluations) for report in reports)
        assert (found > 0) == (period is not None)
    (first, *rest), (second, *others) = results
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert str(rest) == str(others)  # NaN is equal to itself only in print


def of(config: Config) -> list[EvaluationReport]:
    return [found for report in train(config) for found in report.evaluations]


def test_every_evaluation_is_of_the_weights_of_its_step(
    cores: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = []
    copy = Trainer.agent

    def keep(self: Trainer, *arguments: Any) -> Any:
        kept.append(copy(self, *arguments))
        return kept[-1]

    monkeypatch.setattr(Trainer, "agent", keep)
    found = of(cartpole())
    assert [(report.steps, report.baseline) for report in found] == [
        (0, True),
        (200, False),
        (400, False),
        (600, False),
    ]
    agents = [agent for agent in kept if agent.device.type == "cpu"]
    for report, agent in zip(found, agents, strict=False):
        epsilon = 1.0 if report.baseline else 0.0
        torch.set_num_threads(1)
        assert report.evaluation == evaluate(agent, episodes=3, epsilon=epsilon)
        assert report.held_out_max_q == mean_max_q(agent, held_out_states(agent, None))
        assert report.frames == report.steps


def test_what_a_run_leaves_of_its_evaluations(tmp_path: Path, cores: str) -> None:
    reports = list(train(breakout(out=str(tmp_path))))
    folder = reports[-1].folder
    assert folder is not None
    found = [one for report in reports for one in report.evaluations]
    with (folder / "evaluations.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["steps"] for row in rows] == ["0", "80", "160"]
    assert [row["random_policy"] for row in rows] == ["1", "0", "0"]
    assert [float(row["mean_score"]) for row in rows] == pytest.approx(
        [one.evaluation.mean for one in found], rel=1e-6
    )
    assert all(math.isfinite(float(row["held_out_max_q"])) for row in rows)
    with (folder / "evaluation_games.csv").open() as file:
        games = list(csv.DictReader(file))
    assert len(games) == sum(len(one.evaluation.games) for one in found)
    by_step = [game for game in games if game["steps"] == "160"]
    assert sum(int(game["length_frames"]) for game in by_step) in range(400, 404)
    assert by_step[-1]["interrupted"] == "1"
    (kept,) = (tmp_path / "held_out").iterdir()
    assert kept.name.startswith("Breakout-")

    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder))
    events.Reload()
    scalars = events.Scalars("evaluation/mean_score")
    assert [event.step for event in scalars] == [80, 160]
    assert [event.step for event in events.Scalars("random_policy/mean_score")] == [0]


def test_no_evaluations_in_a_run_shorter_than_the_period(tmp_path: Path, cores: str) -> None:
    assert of(cartpole(evaluation_period_steps=601, out=str(tmp_path))) == []
    assert not (tmp_path / "held_out").exists()
    assert not list(tmp_path.rglob("evaluation*"))


def test_a_scripts_own_environment_is_evaluated_in_between(cores: str) -> None:
    config = cartpole(env=None, steps=200, evaluation_episodes=2)
    found = [
        one
        for report in train(
            config, env_fn=lambda: gymnasium.make("Acrobot-v1", max_episode_steps=9)
        )
        for one in report.evaluations
    ]
    assert [[game.steps for game in one.evaluation.games] for one in found] == [[9, 9]] * 2


def test_pytorchs_threads_are_given_back() -> None:
    before = torch.get_num_threads()
    agent = Trainer(cartpole()).agent()
    evaluator = InBetween(None, None)
    evaluator.begin(lambda: agent, 0, 0)
    assert torch.get_num_threads() == before


# The states.


def test_held_out_states_are_sampled_once_and_used_again(tmp_path: Path) -> None:
    agent = Trainer(breakout()).agent()
    file = tmp_path / "held_out" / "Breakout.npz"
    states = held_out_states(agent, file)
    assert states.shape == (500, 4, 84, 84)
    assert states.dtype == np.uint8
    assert file.stat().st_size < 1_500_000
    assert len({state.tobytes() for state in states}) > 400
    assert (held_out_states(agent, None) == states).all()  # always the same ones
    replaced = states[:7].copy()
    np.savez_compressed(file, states=replaced)
    assert (held_out_states(agent, file) == replaced).all()
    values = agent.q_values(states)
    assert mean_max_q(agent, states) == pytest.approx(values.max(1).mean(), rel=1e-5)


def archive(states: Any, name: str = "states.npy", header: bytes | None = None) -> bytes:
    member = io.BytesIO()
    np.lib.format.write_array(member, np.asarray(states), allow_pickle=True)
    text = member.getvalue()
    whole = io.BytesIO()
    with zipfile.ZipFile(whole, "w", zipfile.ZIP_DEFLATED) as zipped:
        zipped.writestr(name, text if header is None else text.replace(*header.split(b"|")))
    return whole.getvalue()


GOOD = np.random.default_rng(0).normal(size=(3, 1, 4)).astype(np.float32)


@pytest.mark.parametrize(
    "contents",
    [
        b"",
        b"nonsense",
        archive(GOOD)[:-30],
        archive(GOOD)[:60] + b"X" + archive(GOOD)[61:],
        archive(GOOD, name="other.npy"),
        archive(GOOD.astype(np.float64)),
        archive(GOOD[:, :, :3]),
        archive(np.zeros((501, 1, 4), np.float32)),
        archive(np.array([{}, {}])),
        archive(GOOD, header=b"(3, 1, 4)|(3" + b"0" * 15 + b", 1, 4)"),
    ],
    ids=[
        "empty",
        "nonsense",
        "short",
        "flipped",
        "name",
        "dtype",
        "shape",
        "many",
        "pickle",
        "huge",
    ],
)
def test_a_file_that_is_not_the_states_is_refused_before_the_run(
    tmp_path: Path, contents: bytes
) -> None:
    config = cartpole(out=str(tmp_path), steps=200)
    list(train(config))
    (file,) = (tmp_path / "held_out").iterdir()
    file.write_bytes(contents)
    with pytest.raises(UserError, match="delete it to have them sampled anew") as caught:
        Trainer(config)
    assert str(file) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_another_protocol_has_other_states(tmp_path: Path) -> None:
    def file(**settings: Any) -> Path:
        return held_out_file(breakout(**settings), tmp_path, settings.get("game", "Breakout"))

    assert file() == file(seed=5, life_loss="ignore", learning_rate=1.0, steps=999)
    others = [{"frame_skip": 3}, {"stack": 2}, {"game": "Pong"}, {"padding": "repeat"}]
    assert len({file(), *(file(**other) for other in others)}) == 5


# The process.


def agent_of(**settings: Any) -> Any:
    return Trainer(cartpole(**settings)).agent()


def test_a_process_that_dies_does_not_end_the_run() -> None:
    agent = agent_of()
    with closing(Background(None)) as background:
        background.begin(lambda: agent, 100, 100)
        assert background._process is not None
        background._process.kill()
        with pytest.warns(RuntimeWarning, match="that evaluates has ended with status -9"):
            background.wait()
        (found,) = background.take_finished()
    assert found.evaluation == evaluate(agent, episodes=3)


def test_what_cannot_be_evaluated_is_said_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    agent = agent_of()
    with closing(Background(tmp_path / "file" / "states.npz")) as background:
        background.begin(lambda: agent, 100, 100)
        with pytest.raises(UserError, match=r"the evaluation failed: .*npz: cannot be written"):
            background.wait()


def test_the_process_leaves_nothing_behind() -> None:
    agent = agent_of()
    background = Background(None)
    background.begin(lambda: agent, 100, 100)
    assert background._folder is not None
    assert background._process is not None
    folder, process = Path(background._folder.name), background._process
    assert folder.exists()
    background.close()
    assert not folder.exists()
    assert process.poll() is not None


def test_the_process_does_not_outlive_a_run_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import os; os.sched_getaffinity = lambda _: set(range(16))\n"
        "from fastdqn import Config, train\n"
        "config = Config.preset('classic', env='CartPole-v1', out=None, steps=10**8,\n"
        "    evaluation_period_steps=10**7, evaluation_episodes=10**9, evaluation_frames=None)\n"
        "for report in train(config): print(report.steps, flush=True)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()
            (child,) = psutil.Process(process.pid).children()
            assert "fastdqn.evaluation_worker" in child.cmdline()
        finally:
            process.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while child.is_running() and child.status() != psutil.STATUS_ZOMBIE:
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_the_process_imports_no_more_than_it_needs() -> None:
    code = (
        "import sys, fastdqn.evaluation_worker, fastdqn.evaluator\n"
        "heavy = ('rich', 'tyro', 'tensorboard', 'matplotlib', 'fastdqn.trainer')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout == "[]\n", done.stderr


def test_a_model_is_kept_before_the_last_evaluation_is_waited_for(
    tmp_path: Path, cores: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if cores == "in between":
        pytest.skip("there is nothing to wait for")
    seen = []
    wait = Background.wait

    def watch(self: Background) -> None:
        if self._under_way is not None and self._under_way.steps == 200:
            assert trainer.output.path is not None
            seen.append(load_agent(trainer.output.path))
        wait(self)

    monkeypatch.setattr(evaluator_module.Background, "wait", watch)
    trainer = Trainer(cartpole(out=str(tmp_path), steps=200))
    list(trainer.run())
    (agent,) = seen
    assert torch.equal(next(agent.network.parameters()), weights(trainer)[0])
