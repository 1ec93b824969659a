"""A run that is stopped and resumed is the run that was not: every tensor, byte and row."""

from __future__ import annotations

import csv
import errno
import hashlib
import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

import fastdqn
from fastdqn import evaluator
from fastdqn.config import Config
from fastdqn.errors import UserError
from fastdqn.replay import ReplayMemory
from fastdqn.resuming import CHANGEABLE, resumed_trainer
from fastdqn.run_folder import RunFolder
from fastdqn.run_state import Checkpoint, RunLock, checkpoints_of
from fastdqn.trainer import Trainer

# What a clock or the machine says is not the run's.
OF_THE_MACHINE = {
    *("seconds", "frames_per_second", "updates_per_second", "batch_wait", "resident_bytes"),
    "fraction",  # of a longer run
    # Room that groups of frames once took is not given back at once; a loaded memory has none.
    *("replay_bytes", "replay_full_bytes", "replay_frame_bytes"),
}


def breakout(out: Path, **settings: Any) -> Config:
    """Two games with sticky actions; every part of a run is in use after a few hundred steps."""
    game = {"game": "Breakout", "num_envs": 2, "sticky_actions": 0.25, "max_episode_frames": 900}
    learning = {"learning_starts_steps": 250, "train_period_steps": 16, "target_period_steps": 300}
    replay = {"replay_capacity": 900, "batch_size": 4, "n_step": 3}
    run = {"steps": 4_000, "seed": 4, "epsilon_decay_steps": 2_000, "log_period_steps": 170}
    here = {"threads": 1, "out": str(out)}
    return Config(**{**game, **learning, **replay, **run, **here, **settings})


def cartpole(out: Path, **settings: Any) -> Config:
    values = {"env": "CartPole-v1", "steps": 700, "learning_starts_steps": 50, "out": str(out)}
    return Config.preset("classic", **{**values, "log_period_steps": 90, **settings})


def finish(trainer: Trainer, until: int | None = None) -> Path:
    """Run to the end, or until so many steps; the run's folder."""
    stop = (lambda: trainer.counters.steps >= until) if until else lambda: False
    for _ in trainer.run(stop):
        pass
    folder = trainer.output.path
    assert folder is not None
    return folder


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return [
            {name: value for name, value in row.items() if name not in OF_THE_MACHINE}
            for row in csv.DictReader(file)
        ]


def curves(run: Path) -> list[tuple[str, int, float]]:
    """TensorBoard's points, each as often as its files have it."""
    points = []
    for path in sorted(run.glob("events.out.tfevents.*")):
        for event in EventFileLoader(str(path)).Load():
            for value in event.summary.value:
                if value.tag.split("/")[1] not in OF_THE_MACHINE:
                    number = value.tensor.float_val[0] if value.HasField("tensor") else 0.0
                    points.append((value.tag, event.step, number or value.simple_value))
    return sorted(points)


def digests(value: Any, place: str = "") -> dict[str, str]:
    """Every number, array and generator of a checkpoint's state, by its place."""
    if isinstance(value, dict):
        found: dict[str, str] = {}
        for name, item in value.items():
            if name not in ("seconds", "log_nbytes"):
                found |= digests(item, f"{place}.{name}")
        return found
    if isinstance(value, list):
        return digests({str(i): item for i, item in enumerate(value)}, place)
    if isinstance(value, (np.ndarray, bytes)):
        return {place: hashlib.sha256(bytes(np.asarray(value).tobytes())).hexdigest()}
    return {place: json.dumps(value)}


def check_same(first: Path, second: Path, *, but: tuple[str, ...] = ()) -> None:
    """The last checkpoints of both runs, their models and logs are the same. `but` names parts of
    the state that time decides."""
    a, b = (Checkpoint(checkpoints_of(run)[0]) for run in (first, second))
    assert a.path.name == b.path.name
    states = [{n: v for n, v in c.state().items() if n not in but} for c in (a, b)]
    assert digests(states[0]) == digests(states[1])
    assert replay_bytes(a) == replay_bytes(b)
    logs = sorted(path.name for path in first.glob("*.csv"))
    assert logs == sorted(path.name for path in second.glob("*.csv"))
    for name in logs:
        assert rows(first / name) == rows(second / name)
    assert curves(first) == curves(second)
    models = [fastdqn.load_agent(run, "cpu").network.state_dict() for run in (first, second)]
    assert all(models[0][name].equal(models[1][name]) for name in models[0])


def replay_bytes(checkpoint: Checkpoint) -> bytes:
    """Of a memory saved as a whole: all but the way that compressed frames are grouped."""
    chunks = checkpoint.path.parent / "chunks"
    memory = ReplayMemory.load(checkpoint.path / "replay.fastdqn", chunks, storage="raw")
    whole = checkpoint.path.parent / "whole"
    memory.save(whole)
    data = whole.read_bytes()
    whole.unlink()
    return data


@pytest.mark.slow
@pytest.mark.parametrize("num_envs", [1, 2])
def test_4000_steps_in_three_processes_are_4000_in_one(num_envs: int, tmp_path: Path) -> None:
    """1,000 and 1,000 and 2,000 steps, by the command line, in the middle of games."""
    straight = finish(Trainer(breakout(tmp_path / "straight", num_envs=num_envs)))

    config = breakout(tmp_path / "parts", num_envs=num_envs, steps=1_000, epsilon_decay_steps=2_000)
    run = finish(Trainer(config))
    for steps in (2_000, 4_000):
        command = ["--resume", str(run), "--steps", str(steps)]
        subprocess.run([sys.executable, "-m", "fastdqn", *command], check=True, timeout=300)
    check_same(straight, run)


# Every way in which parts of a run work beside each other or hold frames elsewhere.
BESIDE: dict[str, dict[str, Any]] = {
    "a worker": {"num_envs": 2, "workers": 1, "prefetch_threads": 0},
    "workers": {"num_envs": 3, "workers": 2, "prefetch_threads": 2},
    "workers, random eviction": {
        "num_envs": 4,
        "workers": 2,
        "prefetch_threads": 1,
        "replay_eviction": "random",
        "replay_capacity": 1_500,
    },
    "files": {"replay_dir": "replay", "prefetch_threads": 2},
    "files, raw, random eviction": {
        "replay_dir": "replay",
        "replay_storage": "raw",
        "workers": 2,
        "replay_eviction": "random",
    },
    "evaluation": {"evaluation_period_steps": 400, "workers": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("name", BESIDE)
def test_4000_steps_in_parts_whatever_works_beside_them(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each part in a process of its own, cut in the midst of games and evaluations, and resumed
    with as many threads and workers and with others."""
    monkeypatch.setattr(evaluator, "_CORES_OF_A_RUN", 0)  # evaluations in a process, on any machine
    settings = {**BESIDE[name], "evaluation_episodes": 2, "evaluation_frames": 1_500}
    others: dict[str, Any] = {"prefetch_threads": 1, "workers": 0}
    if "replay_dir" in settings:
        settings["replay_dir"], others["replay_dir"] = str(tmp_path / "a"), str(tmp_path / "b")
    apart = {"replay_dir": str(tmp_path / "c")} if "replay_dir" in settings else {}
    straight = finish(Trainer(breakout(tmp_path / "straight", **{**settings, **apart})))

    run = finish(Trainer(breakout(tmp_path / "parts", **settings)), until=1_203)
    evaluates = "evaluation_period_steps" in settings
    for until, changes in ((1_609, {}), (2_800, others), (None, settings)):
        state = Checkpoint(checkpoints_of(run)[0]).state()
        assert any(length for length in state["games"]["steps"]), "no game is cut"
        if evaluates and until is not None:  # 2,800 is cut before the next one begins
            assert state["evaluations"]["under_way"], "no evaluation is cut"
        changes = {key: value for key, value in changes.items() if key in CHANGEABLE}
        arguments = json.dumps([str(run), until, changes])
        subprocess.run([sys.executable, __file__, arguments], check=True, timeout=600)
    check_same(straight, run, but=("evaluations",) if evaluates else ())
    if evaluates:
        evaluations = rows(run / "evaluations.csv")
        assert [row["steps"] for row in evaluations] == [str(400 * k) for k in range(11)]


def go_on(run: str, until: int | None, changes: dict[str, Any]) -> None:
    """What such a process does."""
    evaluator._CORES_OF_A_RUN = 0
    finish(resumed_trainer(run, changes), until)


def test_evaluations_in_between_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that this process plays, as on a machine without a core to spare."""
    monkeypatch.setattr(evaluator, "_CORES_OF_A_RUN", 1_000)
    settings = {"evaluation_period_steps": 100, "evaluation_frames": 600, "evaluation_episodes": 2}
    straight = finish(Trainer(cartpole(tmp_path / "straight", **settings)))
    run = finish(Trainer(cartpole(tmp_path / "parts", **settings)), until=200)
    finish(resumed_trainer(run, {}), until=455)
    finish(resumed_trainer(run, {}))
    check_same(straight, run)
    assert [row["steps"] for row in rows(run / "evaluations.csv")] == [
        str(100 * k) for k in range(8)
    ]


@pytest.mark.parametrize("stops", [(251,), (100, 300, 304, 305, 430)])
def test_stopped_anywhere(stops: tuple[int, ...], tmp_path: Path) -> None:
    """Before learning, in its midst, with updates due, after one step, with updates under way."""
    settings = {"steps": 500, "num_envs": 1}
    straight = finish(Trainer(breakout(tmp_path / "straight", **settings)))
    run = finish(Trainer(breakout(tmp_path / "parts", **settings)), until=stops[0])
    for until in (*stops[1:], None):
        finish(resumed_trainer(run, {}), until)
    check_same(straight, run)


@pytest.mark.parametrize("padding", ["zero", "reject"])
def test_classic_control(padding: str, tmp_path: Path) -> None:
    settings = {"num_envs": 3, "padding": padding, "optimizer": "rmsprop_centered"}
    straight = finish(Trainer(cartpole(tmp_path / "straight", **settings)))
    run = finish(Trainer(cartpole(tmp_path / "parts", **settings)), until=333)
    finish(resumed_trainer(run, {"prefetch_threads": 0}))
    check_same_but_for(("prefetch_threads",), straight, run)


def check_same_but_for(settings: tuple[str, ...], first: Path, second: Path) -> None:
    configs = [json.loads((run / "config.json").read_text()) for run in (first, second)]
    different = {name for name in configs[0] if configs[0][name] != configs[1][name]}
    assert different == {*settings, "out"}
    check_same(first, second)


def test_checkpoints_change_nothing(tmp_path: Path) -> None:
    """A run with one every few steps learns what one without learns, and from each of them the
    rest of the run is the same."""
    settings = {"num_envs": 2, "target_tau": 0.01}
    straight = finish(Trainer(cartpole(tmp_path / "straight", **settings)))
    settings |= {"checkpoint_period_steps": 150, "keep_checkpoints": 9}
    often = finish(Trainer(cartpole(tmp_path / "often", **settings)))
    check_same(straight, often)
    assert [path.name[-4:] for path in checkpoints_of(often)] == [
        "0700", "0600", "0450", "0300", "0150",
    ]  # fmt: skip
    for number in range(1, 5):
        run = tmp_path / f"from-{number}"
        shutil.copytree(often, run)
        for newer in checkpoints_of(run)[:number]:
            shutil.rmtree(newer)
        finish(resumed_trainer(run, {}))
        check_same(straight, run)


def test_a_generator_that_is_left_can_be_gone_on_with(tmp_path: Path) -> None:
    straight = finish(Trainer(cartpole(tmp_path / "straight")))
    for report in fastdqn.train(cartpole(tmp_path / "left")):
        if report.steps >= 300:
            break
    run = report.folder
    assert run is not None
    with pytest.warns(UserWarning, match="resumed at step 360 from"):
        reports = fastdqn.resume(run)
    assert [report.steps for report in reports] == [450, 540, 630, 700]
    check_same(straight, run)


def test_the_model_in_the_folder_is_the_last_one(tmp_path: Path) -> None:
    run = finish(Trainer(cartpole(tmp_path)), until=300)
    before = fastdqn.load_agent(run, "cpu").network.state_dict()
    trainer = resumed_trainer(run, {})
    finish(trainer)
    after = fastdqn.load_agent(run, "cpu").network.state_dict()
    now = trainer.learner.online.state_dict()
    assert all(after[name].equal(now[name]) for name in now)
    assert not all(after[name].equal(before[name]) for name in now)


def test_speeds_and_hours_count_from_the_resume(tmp_path: Path) -> None:
    run = finish(Trainer(cartpole(tmp_path)), until=300)
    (first,) = resumed_trainer(run, {"steps": 360, "hours": 1.0}).run()
    assert first.frames_per_second * first.seconds < 1_000 * 60
    total = [
        float(row["seconds"])
        for row in csv.DictReader((run / "progress.csv").read_text().splitlines())
    ]
    assert total == sorted(total)


# -- what may change and what not ----------------------------------------------------------------


def test_another_setting_is_refused_in_a_line(tmp_path: Path) -> None:
    run = finish(Trainer(cartpole(tmp_path)), until=100)
    for name, value in {"seed": 3, "batch_size": 8, "discount": 0.9, "num_envs": 2}.items():
        with pytest.raises(UserError, match=rf"^{name}={value}: the run has [\d.]+; a resumed run"):
            resumed_trainer(run, {name: value})
    with pytest.raises(UserError, match="come to its end at step 100; give more steps"):
        resumed_trainer(run, {"steps": 90, "learning_starts_steps": 50})
    finish(resumed_trainer(run, {"steps": 800}))


def test_logs_of_a_run_that_has_ended_stay_when_nothing_is_left_to_do(tmp_path: Path) -> None:
    run = finish(Trainer(cartpole(tmp_path)))
    logs = {path: path.read_bytes() for path in (*run.glob("*.csv"), *run.glob("events*"))}
    with pytest.raises(UserError, match="come to its end at step 700"):
        resumed_trainer(run, {})
    assert {path: path.read_bytes() for path in logs} == logs


def test_functions_have_to_be_given_again(tmp_path: Path) -> None:
    def epsilon(step: int) -> float:
        return 0.5

    run = finish(Trainer(cartpole(tmp_path, epsilon=epsilon)), until=100)
    with pytest.raises(UserError, match="epsilon was given as a function; do the same"):
        resumed_trainer(run, {})
    finish(resumed_trainer(run, {"epsilon": epsilon}))
    with pytest.raises(UserError, match="env_fn was not given as a function"):
        resumed_trainer(run, {"epsilon": epsilon}, env_fn=lambda: gymnasium.make("CartPole-v1"))


class Mine(gymnasium.envs.classic_control.CartPoleEnv):
    """An environment that nobody knows how to save."""


def test_environments_that_cannot_be_saved_begin_anew_and_it_says_so(tmp_path: Path) -> None:
    config = cartpole(tmp_path, num_envs=2)
    run = finish(Trainer(config, env_fn=Mine), until=300)
    trainer = resumed_trainer(run, {}, env_fn=Mine)
    assert any("begins a new episode: the state of Mine" in note for note in trainer.notes)
    finish(trainer)
    trainer.memory.check_invariants()
    for row in rows(run / "episodes.csv"):
        assert float(row["score"]) == float(row["length_steps"])  # no game is joined to another


def test_a_start_from_weights_takes_nothing_else(tmp_path: Path) -> None:
    run = finish(Trainer(cartpole(tmp_path)))
    trainer = Trainer(cartpole(tmp_path, init_from=str(run)))
    weights = fastdqn.load_agent(run, "cpu").network.state_dict()
    for network in (trainer.learner.online, trainer.learner.target):
        assert all(network.state_dict()[name].equal(weights[name]) for name in weights)
    assert trainer.counters.steps == 0
    assert trainer.memory.num_frames == 0
    with pytest.raises(UserError, match=r"init_from=.*not the one of these settings: .*size"):
        Trainer(cartpole(tmp_path, init_from=str(run), hidden_units=(7,)))


# -- faults ---------------------------------------------------------------------------------------


def test_two_runs_in_one_folder(tmp_path: Path) -> None:
    run = finish(Trainer(cartpole(tmp_path)), until=100)
    trainer = resumed_trainer(run, {})
    with pytest.raises(UserError, match=r"in use by process \d+ on .*; stop that run"):
        resumed_trainer(run, {})
    finish(trainer)
    RunLock(run).release()


@pytest.mark.parametrize(
    "damage", ["cut", "flip", "longer", "missing", "manifest", "manifest flip"]
)
@pytest.mark.parametrize("name", ["arrays.safetensors", "replay.fastdqn"])
def test_an_older_checkpoint_is_taken_where_the_last_is_damaged(
    damage: str, name: str, tmp_path: Path
) -> None:
    straight = finish(Trainer(cartpole(tmp_path / "straight")))
    run = finish(Trainer(cartpole(tmp_path / "run", checkpoint_period_steps=200)), until=500)
    last = checkpoints_of(run)[0]
    file = last / ("manifest.json" if damage.startswith("manifest") else name)
    data = file.read_bytes()
    middle = len(data) // 2
    if damage == "missing":
        file.unlink()
    else:
        flipped = data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]
        changes = {"cut": data[:middle], "longer": data + b"\0", "manifest": data[:-9]}
        file.write_bytes(changes.get(damage, flipped))
    trainer = resumed_trainer(run, {})
    assert trainer.counters.steps == 400
    assert str(last) in trainer.notes[0]
    assert "going on from the one before it" in trainer.notes[0]
    finish(trainer)
    check_same(straight, run)
    assert [path.name[-3:] for path in checkpoints_of(run)] == ["700", "600"]


def test_no_checkpoint_is_whole(tmp_path: Path) -> None:
    run = finish(Trainer(cartpole(tmp_path)), until=200)
    (checkpoint_path,) = checkpoints_of(run)
    (checkpoint_path / "manifest.json").write_text("{}")
    with pytest.raises(UserError, match=rf"{checkpoint_path}: manifest.json is not a manifest"):
        resumed_trainer(run, {})
    shutil.rmtree(checkpoint_path)
    with pytest.raises(UserError, match="no checkpoint to resume from"):
        resumed_trainer(run, {})
    with pytest.raises(UserError, match="no such folder of a run"):
        resumed_trainer(tmp_path / "nowhere", {})


def test_a_replay_of_another_run_is_refused(tmp_path: Path) -> None:
    runs = [
        finish(Trainer(cartpole(tmp_path / name, seed=seed)), until=200)
        for name, seed in (("a", 0), ("b", 1))
    ]
    first, second = (checkpoints_of(run)[0] / "replay.fastdqn" for run in runs)
    shutil.copy(second, first)
    with pytest.raises(
        UserError, match=r"replay.fastdqn (has \d+ bytes; expected \d+|differs from its digest)"
    ):
        resumed_trainer(runs[0], {})


def test_a_full_disk_ends_the_run_and_leaves_the_last_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = Trainer(cartpole(tmp_path, checkpoint_period_steps=200))
    real = RunFolder.checkpoint

    class Full:
        def save_in_chunks(self, *_: object) -> list[str]:
            raise OSError(errno.ENOSPC, "No space left on device")

    def full(self: RunFolder, steps: int, config: Config, state: Any, replay: Any) -> None:
        real(self, steps, config, state, Full() if steps > 300 else replay)

    monkeypatch.setattr(RunFolder, "checkpoint", full)
    with pytest.raises(UserError, match="step-000000000400: could not be written: No space left"):
        list(trainer.run())
    run = trainer.output.path
    assert run is not None
    names = {path.name for path in (run / "checkpoints").iterdir()}
    assert names == {"step-000000000200", "chunks"}
    monkeypatch.undo()
    finish(resumed_trainer(run, {}))


if __name__ == "__main__":
    go_on(*json.loads(sys.argv[1]))
