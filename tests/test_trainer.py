"""Whole runs: determinism, the ratio of acting to learning, how they end, what they leave."""

from __future__ import annotations

import csv
import gc
import json
import math
import time
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from small_envs import FixedLength

from fastdqn.checkpoint import load_agent
from fastdqn.config import Config
from fastdqn.errors import UserError
from fastdqn.evaluation import evaluate
from fastdqn.machine import Limit
from fastdqn.metrics import Counters
from fastdqn.replay import ReplayMemory
from fastdqn.trainer import Budget, Trainer, train


def cartpole(**settings: Any) -> Config:
    """A short run that learns all the same."""
    values = {"env": "CartPole-v1", "steps": 600, "learning_starts_steps": 50, "out": None}
    return Config.preset("classic", **{**values, "log_period_steps": 100, **settings})


def breakout(**settings: Any) -> Config:
    values = {"game": "Breakout", "steps": 160, "learning_starts_steps": 100, "out": None}
    return Config(**{**values, "replay_capacity": 2_000, "batch_size": 4, "threads": 1, **settings})


def weights_after(config: Config) -> list[torch.Tensor]:
    trainer = Trainer(config)
    for _ in trainer.run():
        pass
    assert trainer.counters.updates > 0
    return [weight.detach().clone() for weight in trainer.learner.online.parameters()]


def equal(first: list[torch.Tensor], second: list[torch.Tensor]) -> bool:
    return all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_folder_that_holds_a_memory_is_no_place_for_another(tmp_path: Path) -> None:
    for _ in Trainer(cartpole(replay_dir=str(tmp_path))).run():
        pass
    with pytest.raises(UserError, match=f"replay_dir: {tmp_path}: holds a replay memory already"):
        Trainer(cartpole(replay_dir=str(tmp_path)))


@pytest.mark.parametrize("make", [cartpole, breakout])
@pytest.mark.parametrize("num_envs", [1, 3])
def test_same_seed_same_weights_other_seed_others(make: Any, num_envs: int) -> None:
    first = weights_after(make(seed=1, num_envs=num_envs))
    torch.manual_seed(99)  # nothing of a run hangs on the global generators
    np.random.seed(99)  # noqa: NPY002
    assert equal(first, weights_after(make(seed=1, num_envs=num_envs)))
    assert not equal(first, weights_after(make(seed=2, num_envs=num_envs)))


@pytest.mark.parametrize("make", [cartpole, breakout])
def test_weights_do_not_depend_on_the_number_of_threads_that_gather(make: Any) -> None:
    # Several updates are due at once, of batches large enough to be shared out.
    settings = {"num_envs": 3, "train_period_steps": 1, "batch_size": 20, "steps": 120}
    expected = weights_after(make(**settings, prefetch_threads=0))
    for threads in (1, 2, 4):
        assert equal(weights_after(make(**settings, prefetch_threads=threads)), expected), threads


def test_reports_say_how_long_learning_waits_for_batches() -> None:
    first, *later = train(cartpole(learning_starts_steps=150))
    assert math.isnan(first.batch_wait)
    assert all(0 <= report.batch_wait < 1 for report in later)


def test_a_run_leaves_the_global_generators_alone() -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state()
    weights_after(cartpole())
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("part", ["environments", "exploration", "sampling", "weights"])
def test_the_seed_reaches_every_part(part: str) -> None:
    def first(seed: int) -> Any:
        trainer = Trainer(cartpole(seed=seed))
        if part == "environments":
            return trainer.envs.reset().tolist()
        if part == "weights":
            return next(trainer.learner.online.parameters()).tolist()
        if part == "exploration":
            return [trainer.actor.act(0).tolist() for _ in range(50)]
        zeros = np.zeros((1, 4), np.float32)
        trainer.memory.begin(zeros)
        no = np.array([False])
        for _ in range(100):
            trainer.memory.append(np.array([0]), np.array([0.0]), zeros, no, no)
        return trainer.memory.sample(64).indices.tolist()

    assert first(0) == first(0) != first(1)


def test_counts_are_the_same_for_1_4_and_7_environments() -> None:
    counts = []
    for num_envs in (1, 4, 7):
        trainer = Trainer(
            cartpole(
                num_envs=num_envs,
                steps=28 * 20,
                train_period_steps=3,
                target_tau=None,
                target_period_steps=50,
            )
        )
        list(trainer.run())
        counters = trainer.counters
        counts.append((counters.steps, counters.updates, counters.target_copies))
    # Updates at 51, 54, ..., 558; copies at 50, 100, ..., 550.
    assert counts == [(560, 170, 11)] * 3


def test_evaluation_does_not_change_training() -> None:
    def run(evaluates: bool) -> list[torch.Tensor]:
        trainer = Trainer(cartpole())
        for _ in trainer.run():
            if evaluates:
                evaluate(trainer.agent(), episodes=2, epsilon=0.5)
        return list(trainer.learner.online.parameters())

    assert equal(run(False), run(True))


def test_reports_of_a_run_with_several_environments() -> None:
    reports = list(train(cartpole(num_envs=7, steps=350)))
    assert [report.steps for report in reports] == [105, 203, 301, 350]
    first, *_, last = reports
    assert last.frames == last.steps  # an environment's step is a frame
    assert last.fraction == 1
    assert last.updates == 301
    assert all(0 < report.loss < 100 for report in reports)
    games = [game for report in reports for game in report.finished]
    assert len(games) == last.episodes
    assert last.mean_score == pytest.approx(sum(game.score for game in games) / len(games))
    assert first.epsilon > last.epsilon > 0.9
    assert last.replay_bytes > first.replay_bytes > 0
    assert last.resident_bytes > 10**7


def test_loss_is_unknown_before_the_first_update() -> None:
    first, *_ = train(cartpole(learning_starts_steps=150))
    assert math.isnan(first.loss)
    assert math.isnan(first.mean_q)


@pytest.mark.parametrize(
    ("ends", "reached"),
    [
        ({"steps": 333}, lambda c: c.steps == 333),
        ({"frames": 120}, lambda c: c.frames == 120),
        ({"episodes": 3}, lambda c: c.episodes == 3),
        ({"steps": 333, "frames": 10_000, "episodes": 999}, lambda c: c.steps == 333),
    ],
)
def test_ends(ends: dict[str, int], reached: Any) -> None:
    trainer = Trainer(cartpole(**{"steps": None, **ends}))
    list(trainer.run())
    assert reached(trainer.counters)


def test_a_run_ends_after_its_hours() -> None:
    start = time.monotonic()
    (*_, last) = train(cartpole(steps=None, hours=0.5 / 3600))
    assert 0.5 <= last.seconds <= time.monotonic() - start < 30
    budget = Budget(cartpole(steps=None, hours=2.0))
    assert budget.fraction(Counters(steps=10**9), 1800) == 0.25


def test_a_run_leaves_its_folder(tmp_path: Path) -> None:
    reports = list(train(cartpole(out=str(tmp_path / "runs"), steps=550, save_period_steps=200)))
    (folder,) = (tmp_path / "runs").iterdir()
    assert {report.folder for report in reports} == {folder}
    assert folder.name.startswith("CartPole-v1-0-")
    config = json.loads((folder / "config.json").read_text())
    assert (config["steps"], config["learning_starts_steps"]) == (550, 50)
    protocol = json.loads((folder / "protocol.json").read_text())
    assert {
        "game",
        "preset",
        "num_actions",
        "device",
        "parameters",
        "replay_bytes",
    } <= protocol.keys()
    with (folder / "progress.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["steps"]) for row in rows] == [100, 200, 300, 400, 500, 550]
    with (folder / "episodes.csv").open() as file:
        games = list(csv.DictReader(file))
    assert len(games) == reports[-1].episodes
    assert list(folder.glob("events.out.tfevents.*"))
    agent = load_agent(folder)
    assert evaluate(agent, episodes=1).games[0].steps > 5


def test_no_run_writes_over_another(tmp_path: Path) -> None:
    for _ in range(3):
        list(train(cartpole(out=str(tmp_path), steps=60)))
    assert len(list(tmp_path.iterdir())) == 3
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot make"):
        train(cartpole(out=str(tmp_path / "file")))


def test_leaving_the_loop_saves_model_and_logs(tmp_path: Path) -> None:
    for report in train(cartpole(out=str(tmp_path))):
        folder = report.folder
        if report.steps >= 300:
            break
    gc.collect()
    assert folder is not None
    load_agent(folder)
    with (folder / "progress.csv").open() as file:
        assert [int(row["steps"]) for row in csv.DictReader(file)] == [100, 200, 300]


def test_an_interrupt_in_the_loop_saves_model_and_logs(tmp_path: Path) -> None:
    trainer = Trainer(cartpole(out=str(tmp_path)))

    def interrupt() -> bool:
        if trainer.counters.steps == 250:
            raise KeyboardInterrupt
        return False

    with pytest.raises(KeyboardInterrupt):
        list(trainer.run(interrupt))
    folder = trainer.output.path
    assert folder is not None
    load_agent(folder)
    with (folder / "progress.csv").open() as file:
        assert [int(row["steps"]) for row in csv.DictReader(file)] == [100, 200, 250]


def test_asking_to_stop_ends_the_run_with_a_report() -> None:
    trainer = Trainer(cartpole())
    reports = list(trainer.run(lambda: trainer.counters.steps >= 250))
    assert [report.steps for report in reports] == [100, 200, 250]


def test_a_script_may_give_its_own_exploration() -> None:
    asked = []

    def epsilon(step: int) -> float:
        asked.append(step)
        return 0.25

    reports = list(train(cartpole(steps=120, epsilon=epsilon)))
    assert {report.epsilon for report in reports} == {0.25}
    assert set(range(120)) <= set(asked)
    with pytest.raises(UserError, match=r"epsilon\(0\)=2.0: expected a number from 0 to 1"):
        list(train(cartpole(epsilon=lambda _: 2.0)))


def test_a_script_may_give_its_own_environment() -> None:
    def make() -> gymnasium.Env[Any, Any]:
        return gymnasium.make("Acrobot-v1", max_episode_steps=30)

    config = Config.preset("classic", steps=200, learning_starts_steps=50, out=None)
    trainer = Trainer(config, env_fn=make)
    reports = list(trainer.run())
    assert reports[-1].episodes == 6
    assert reports[-1].mean_score == -30
    evaluation = evaluate(trainer.agent(), episodes=2, env_fn=make)
    assert [(game.score, game.steps, game.cut) for game in evaluation.games] == [
        (-30, 30, True)
    ] * 2


def test_without_a_game_nothing_starts() -> None:
    with pytest.raises(UserError, match="no game: give one"):
        train(Config(out=None))


def test_a_memory_that_would_not_fit_is_refused_before_the_first_step(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit = Limit("this machine's memory", 2 * 10**9)
    monkeypatch.setattr("fastdqn.budget.memory_limits", lambda: [limit])
    with pytest.raises(UserError, match=r"needs 7\.\d+ GB .*memory leaves 2 GB") as caught:
        train(breakout(replay_capacity=1_000_000, replay_storage="raw"))
    fits = int(str(caught.value).split("--replay-capacity ")[1].split()[0])
    assert 235_000 < fits < 270_000
    Trainer(breakout(replay_capacity=fits, replay_storage="raw"))
    with pytest.raises(UserError):
        Trainer(breakout(replay_capacity=fits + 1, replay_storage="raw"))
    Trainer(breakout(replay_capacity=fits + 1, replay_storage="raw", allow_overcommit=True))


def test_the_replay_memory_is_sized_from_bytes_and_reports_what_it_holds() -> None:
    config = breakout(
        replay_memory="2MB", replay_storage="raw", replay_eviction="random", steps=600
    )
    trainer = Trainer(config)
    assert trainer.memory.capacity == trainer.config.replay_capacity == 2_000_000 // 7_096
    assert trainer.memory.eviction == "random"
    assert trainer.config.replay_memory is None
    *_, report = trainer.run()
    assert report.replay_frame_bytes == 7_056
    assert report.replay_full_bytes == report.replay_bytes == trainer.memory.nbytes_now
    median, oldest = trainer.memory.age_quantiles([0.5, 1.0]).tolist()
    assert (report.replay_median_age, report.replay_oldest_age) == (median, oldest)


def test_weights_are_the_same_for_every_store(tmp_path: Path) -> None:
    """And what a run in files leaves is a memory that a script can open."""
    weights = []
    stores = [
        {"replay_storage": "raw"},
        {"replay_storage": "compressed"},
        {"replay_storage": "raw", "replay_dir": str(tmp_path / "raw")},
        {"replay_dir": str(tmp_path / "compressed")},
    ]
    for store in stores:
        trainer = Trainer(
            breakout(
                steps=300, learning_starts_steps=100, num_envs=2, replay_capacity=250,
                replay_eviction="random", **store,
            )
        )  # fmt: skip
        list(trainer.run())
        weights.append(torch.cat([w.flatten() for w in trainer.learner.online.parameters()]))
        if "replay_dir" in store:
            with ReplayMemory.open(store["replay_dir"]) as memory:
                assert memory.num_frames == 250
                assert len(memory.sample(8)) == 8
    for other in weights[1:]:
        assert torch.equal(weights[0], other)


def test_memory_stays_flat() -> None:
    """Neither objects nor bytes pile up once the replay memory is full."""
    import tracemalloc

    trainer = Trainer(cartpole(steps=4_000, replay_capacity=500, log_period_steps=500))
    held = []
    tracemalloc.start()
    for report in trainer.run():
        del report
        gc.collect()
        held.append((tracemalloc.get_traced_memory()[0], len(gc.get_objects())))
    tracemalloc.stop()
    (bytes_then, objects_then), (bytes_now, objects_now) = held[3], held[-2]
    # 1,500 steps between the two: one kept float a step would be 36 kB.
    assert bytes_now - bytes_then < 20_000
    assert objects_now - objects_then < 200


@pytest.mark.parametrize("padding", ["zero", "repeat", "reject"])
@pytest.mark.parametrize("life_loss", ["ignore", "terminal", "penalty"])
def test_every_mode_plays_atari(padding: str, life_loss: str) -> None:
    config = breakout(padding=padding, life_loss=life_loss, n_step=2, steps=120)
    (report,) = train(config)
    assert report.frames == pytest.approx(480, abs=8)
    assert report.updates == 6
    assert math.isfinite(report.loss)


@pytest.mark.parametrize(
    "settings",
    [
        {"optimizer": "rmsprop_centered", "loss_reduction": "sum", "double": False},
        {"target_tau": 0.01, "loss": "squared", "max_grad_norm": 10.0},
        {"first_padding": 1, "shared_last_bias": True, "initial_weights": "xavier_uniform"},
        {"fire_reset": True, "sticky_actions": 0.25, "reward_clip": "none", "num_envs": 2},
    ],
)
def test_every_algorithm_plays_atari(settings: dict[str, Any]) -> None:
    (report,) = train(breakout(steps=120, **settings))
    assert report.updates == 6
    assert math.isfinite(report.loss)


def test_an_evaluation_of_atari_plays_whole_games_and_marks_what_is_cut() -> None:
    trainer = Trainer(breakout(evaluation_epsilon=1.0))
    evaluation = evaluate(trainer.agent(), episodes=2)
    for game in evaluation.games:
        assert not game.cut  # random play loses its lives
        assert 400 < game.frames < 5_000
        assert 4 * game.steps - 4 < game.frames <= 4 * game.steps
    assert evaluation.mean == np.mean([game.score for game in evaluation.games])
    assert evaluation == evaluate(trainer.agent(), episodes=2)
    assert evaluation != evaluate(trainer.agent(), episodes=2, seed=1)
    # Greedy and untrained, it never fires: only the limit ends its game.
    cut = evaluate(trainer.agent(), episodes=1, epsilon=0.0, max_frames=200).games[0]
    assert cut.cut
    assert cut.frames == 200
    with pytest.raises(UserError, match="episodes=0"):
        evaluate(trainer.agent(), episodes=0)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_cartpole_is_solved(seed: int) -> None:
    """A mean of 475 of 500 in greedy games; the uniformly random policy has about 22."""
    trainer = Trainer(
        cartpole(
            seed=seed, steps=36_000, learning_starts_steps=1_000, threads=1, log_period_steps=3_000
        )
    )
    means = []
    for _ in trainer.run():
        means.append(evaluate(trainer.agent(), episodes=10).mean)
        if means[-1] >= 475:
            return
    pytest.fail(f"not solved in {trainer.counters.steps} steps: {means}")


def test_nothing_to_learn_from_is_a_clear_end() -> None:
    config = Config(padding="reject", steps=200, learning_starts_steps=80, out=None, threads=1)
    with pytest.raises(UserError, match=r"due at step 80, but 0 of \d+ stored frames can be drawn"):
        list(train(config, env_fn=lambda: FixedLength(2)))  # too short for unpadded stacks


def test_the_least_capacity_serves_environments_whatever_the_others_do() -> None:
    lengths = iter([1, 1000, 2, 1000])

    def make() -> gymnasium.Env[Any, Any]:
        return gymnasium.make("Acrobot-v1", max_episode_steps=next(lengths))

    config = Config(
        num_envs=4,
        n_step=1,
        replay_capacity=40,
        steps=400,
        learning_starts_steps=40,
        out=None,
        threads=1,
    )
    reports = list(train(config, env_fn=make))
    assert reports[-1].steps == 400


def test_a_run_gives_pytorchs_threads_back() -> None:
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        list(train(cartpole(steps=100, threads=1)))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)


def test_a_run_that_is_never_started_holds_nothing_open(tmp_path: Path) -> None:
    import threading

    threads = threading.active_count()
    for _ in range(3):
        train(cartpole(out=str(tmp_path)))
    assert threading.active_count() == threads
    assert not list(tmp_path.rglob("*.csv"))
