"""Worker processes: the same results as in this process, and an end to every one of them."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from fastdqn.config import Config
from fastdqn.envs.make import default_workers, make_envs
from fastdqn.envs.vector import StateNotSaved, VectorEnv
from fastdqn.envs.workers import WorkerError, WorkerVector
from fastdqn.errors import UserError
from fastdqn.trainer import Trainer


@pytest.fixture(autouse=True)
def _nothing_is_left_behind() -> Iterator[None]:
    shared = set(os.listdir("/dev/shm"))
    yield
    gc.collect()
    deadline = time.monotonic() + 10
    while (left := children()) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not left
    assert {name for name in os.listdir("/dev/shm") if "fastdqn" in name} <= shared


def children(of: int | None = None) -> list[int]:
    """Processes that a process has started and that are not gone, zombies included."""
    found = []
    for task in Path(f"/proc/{of or os.getpid()}/task").iterdir():
        found += [int(pid) for pid in (task / "children").read_text().split()]
    return found


def runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def play(envs: VectorEnv, steps: int, seed: int = 3) -> list[bytes]:
    """All that random actions lead to, copied."""
    rng = np.random.default_rng(seed)
    seen = [envs.reset().tobytes()]
    for _ in range(steps):
        result = envs.step(rng.integers(envs.num_actions, size=envs.num_envs))
        seen += [array.tobytes() for array in result.arrays().values()]
        ended = np.flatnonzero(result.terminated | result.truncated)
        if ended.size:
            # In another order than the environments', as the caller may choose it.
            seen.append(envs.reset(ended[::-1]).tobytes())
    return seen


GAMES: list[dict[str, Any]] = [
    {"game": "Breakout", "sticky_actions": 0.25, "fire_reset": True, "max_episode_frames": 400},
    {"game": "Breakout", "life_loss": "penalty", "reward_clip_at": "frame", "frame_skip": 3},
    {"game": "space_invaders", "noop_max": 5, "reward_clip": "none", "frame_shape": (42, 50)},
    {"env": "CartPole-v1"},
]


def make(workers: int | None, num_envs: int = 5, seed: int = 7, **what: Any) -> VectorEnv:
    settings = {"env": None, "game": None, **what}
    return make_envs(**settings, num_envs=num_envs, seed=seed, workers=workers)


def with_cores(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)))


@pytest.mark.parametrize("what", GAMES, ids=lambda what: str(what.get("game", what.get("env"))))
def test_results_are_the_same_for_any_number_of_workers(
    what: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whether this process is one of them, as it is where games need every core, or not."""
    expected = None
    for workers, cores in ((0, 2), (1, 2), (2, 2), (2, 3), (3, 2)):
        with_cores(monkeypatch, cores)
        envs = make(workers, **what)
        assert len(children()) == workers - (workers >= cores and "game" in what)
        protocol = envs.protocol()
        assert protocol.pop("workers") == workers
        seen = (envs.num_actions, envs.frame_shape, envs.dtype, protocol, play(envs, 250))
        envs.close()
        expected = expected or seen
        assert seen == expected, workers


def test_a_reset_in_the_middle_of_a_game_is_the_same_too() -> None:
    def frames(workers: int) -> list[Any]:
        envs = make(workers, num_envs=3, game="Breakout", max_episode_frames=12, noop_max=9)
        seen = [envs.reset(), envs.reset(), envs.reset(np.array([2, 0]))]
        for step in range(9):
            result = envs.step(np.ones(3, np.int64))
            seen.append(result.frames.copy())
            ended = result.truncated
            if ended.any():
                # One that has ended among others, and then all of those that have ended.
                seen.append(envs.reset(np.flatnonzero(ended)[:1]))
                seen.append(envs.reset(np.array([1, 0, 2]) if step % 2 else None))
        envs.close()
        return [array.tolist() for array in seen]

    assert frames(2) == frames(0)


def test_games_that_are_prepared_in_spare_time_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Workers wait for long before some steps, and do not before others."""
    with_cores(monkeypatch, 2)
    seen = []
    for workers, pauses in ((0, 0.0), (2, 0.0), (2, 0.02)):
        envs = make(workers, 3, game="Breakout", max_episode_frames=12, sticky_actions=0.25)
        games = [envs.reset().tobytes()]
        for step in range(40):
            if step % 4 == 0:
                time.sleep(pauses)
            result = envs.step(np.full(3, step % 4))
            games.append(result.frames.tobytes())
            ended = np.flatnonzero(result.truncated)
            if ended.size:
                games.append(envs.reset(ended).tobytes())
        envs.close()
        seen.append(games)
    assert seen[0] == seen[1] == seen[2]


def test_a_game_of_this_process_that_fails_ends_the_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with_cores(monkeypatch, 2)
    envs = make(2, 3, game="Breakout")
    assert isinstance(envs, WorkerVector)
    envs.reset()

    def fail(_: Any) -> None:
        raise ArithmeticError("the ball fell off")

    monkeypatch.setattr(envs._own, "step", fail)
    with pytest.raises(ArithmeticError, match="the ball fell off"):
        envs.step(np.zeros(3, np.int64))
    assert not children()
    with pytest.raises(RuntimeError, match="closed"):
        envs.reset()


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("call", ["receive", "reset", "save_state", "load_state"])
def test_a_call_that_is_cut_short_ends_the_workers(
    call: str, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C in a script, while some have answered and others have not: nothing may go on from
    there as if nothing had happened."""
    with_cores(monkeypatch, 3 if own else 4)
    envs = make(3, 3, game="Breakout", max_episode_frames=8)
    assert isinstance(envs, WorkerVector)
    assert (envs._own is not None) == own
    envs.reset()
    state = envs.save_state()
    ended: NDArray[np.bool_] = np.zeros(3, np.bool_)
    while call == "reset" and not ended.any():
        ended = envs.step(np.zeros(3, np.int64)).truncated
    if call == "receive":
        envs.send(np.zeros(3, np.int64))

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(envs._workers[-1], "wait", interrupt)
    monkeypatch.setattr(envs._workers[-1], "receive", interrupt)
    with pytest.raises(KeyboardInterrupt):
        getattr(envs, call)(*([state] if call == "load_state" else []))
    assert not children()
    with pytest.raises(RuntimeError, match="closed"):
        envs.reset()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_state_of_something_else_is_refused(workers: int) -> None:
    envs = make(workers, 2, game="Breakout")
    envs.reset()
    state = envs.save_state()["envs"]
    for unfit in (
        {"emulator": b"", "stepper": {}},
        {"playing": {}},
        {**state[0], "playing": {**state[0]["playing"], "emulator": b"no such thing"}},
    ):
        with pytest.raises(ValueError, match="not a state of this game"):
            envs.load_state({"envs": [unfit, state[1]]})
    envs.load_state({"envs": state})
    assert envs.step(np.zeros(2, np.int64)).frames.any()
    envs.close()


def test_weights_are_the_same_for_any_number_of_workers() -> None:
    def weights(workers: int) -> list[bytes]:
        trainer = Trainer(
            Config(
                game="Breakout",
                num_envs=3,
                workers=workers,
                steps=240,
                learning_starts_steps=60,
                replay_capacity=2_000,
                batch_size=4,
                threads=1,
                max_episode_frames=200,
                out=None,
            )
        )
        assert trainer.protocol["workers"] == workers
        list(trainer.run())
        assert trainer.counters.updates > 40
        return [w.detach().numpy().tobytes() for w in trainer.learner.online.parameters()]

    assert weights(1) == weights(2) == weights(3) == weights(0)


def test_the_environments_of_all_workers_differ() -> None:
    envs = make(3, num_envs=6, game="Seaquest", sticky_actions=0.25)
    envs.reset()
    for step in range(60):
        frames = envs.step(np.full(6, step % 6)).frames
    assert len({frame.tobytes() for frame in frames}) == 6
    envs.close()


def test_what_is_refused_in_this_process_is_refused_by_workers() -> None:
    envs = make(2, num_envs=3, game="Pong", max_episode_frames=4, noop_max=0)
    none = np.zeros(3, np.int64)
    with pytest.raises(RuntimeError, match="reset before"):
        envs.step(none)
    with pytest.raises(RuntimeError, match="no step was begun"):
        envs.receive()
    envs.reset()
    for actions, error in [
        (np.zeros(2, np.int64), ValueError),
        (np.array([0, 0, 6]), IndexError),
        (np.array([0, -1, 0]), IndexError),
        (np.zeros(3), TypeError),
    ]:
        with pytest.raises(error, match="action"):
            envs.send(actions)
    for ids, error in [([3], IndexError), ([0, 0], ValueError), ([True], TypeError)]:
        with pytest.raises(error, match="env_ids"):
            envs.reset(np.array(ids))
    envs.send(none)
    with pytest.raises(RuntimeError, match="receive its results"):
        envs.send(none)
    with pytest.raises(RuntimeError, match="receive its results"):
        envs.reset()
    assert envs.receive().truncated.all()
    envs.reset(np.array([0, 2]))
    with pytest.raises(RuntimeError, match="reset before"):
        envs.step(none)
    envs.reset(np.array([1]))
    assert envs.step(none).truncated.all()
    envs.close()
    envs.close()
    with pytest.raises(RuntimeError, match="closed"):
        envs.reset()


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ({"game": "Brekout"}, "did you mean Breakout"),
        ({"game": "Breakout", "frame_shape": (900, 900)}, "cannot average"),
        ({"env": "NoSuchEnv-v0"}, "NoSuchEnv"),
        ({"env": "nowhere:make"}, "nowhere"),
        ({"env": "Pendulum-v1"}, "DQN needs Discrete"),
        ({"env": lambda: gymnasium.make("CartPole-v1")}, "my_module:make_env"),
        ({}, "no game"),
        ({"game": "Breakout", "workers": 6}, "split over 1 to 5"),
    ],
)
def test_what_cannot_be_made_is_refused_in_one_line(what: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as caught:
        make(**{"workers": 2, **what})
    assert "\n" not in str(caught.value)
    assert not isinstance(caught.value, WorkerError)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"workers": 3, "num_envs": 2}, "workers=3: num_envs=2 can be split over at most 2"),
        ({"workers": -1}, "workers=-1: expected 0 to 1,024"),
        ({"workers": 1.5}, "workers=1.5: expected a whole number"),
    ],
)
def test_a_config_refuses_numbers_of_workers(settings: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        Config(**settings)


@pytest.mark.parametrize(
    ("num_envs", "cores", "workers"),
    [(1, 64, 0), (8, 1, 0), (8, 2, 0), (8, 3, 2), (8, 64, 8), (64, 16, 15)],
)
def test_the_number_of_workers_suits_the_machine(num_envs: int, cores: int, workers: int) -> None:
    assert default_workers(num_envs, cores) == workers


def test_without_a_number_the_machine_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    chosen = []
    for what in (
        {"game": "Pong"},
        {"env": "CartPole-v1"},
        {"env": lambda: gymnasium.make("Acrobot-v1")},
    ):
        envs = make(None, num_envs=2, **what)
        chosen.append(envs.protocol()["workers"])
        envs.close()
    assert chosen == [2, 0, 0]


# -- State ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", [GAMES[0], GAMES[3]], ids=["Breakout", "CartPole-v1"])
def test_a_saved_state_goes_on_with_any_number_of_workers(what: dict[str, Any]) -> None:
    seen, states = [], []
    for workers in (0, 2):
        envs = make(workers, num_envs=3, **what)
        play(envs, 120)
        states.append(envs.save_state())
        seen.append(go_on(envs))
        for loading in (0, 1, 3):
            other = make(loading, num_envs=3, seed=100, **what)
            other.load_state(states[-1])
            seen.append(go_on(other))
            other.close()
        envs.close()
    assert repr(states[0]) == repr(states[1])
    assert all(later == seen[0] for later in seen)


def go_on(envs: VectorEnv) -> list[bytes]:
    seen = []
    for step in range(60):
        result = envs.step(np.arange(step, step + 3) % 2)
        seen += [array.tobytes() for array in result.arrays().values()]
        ended = np.flatnonzero(result.terminated | result.truncated)
        if ended.size:
            seen.append(envs.reset(ended).tobytes())
    return seen


def test_states_that_cannot_be_had_are_refused_and_the_workers_go_on() -> None:
    envs = make(2, num_envs=2, env="mortal:Mortal")
    with pytest.raises(RuntimeError, match="an episode has ended"):
        envs.save_state()
    envs.reset()
    with pytest.raises(StateNotSaved, match="Mortal"):
        envs.save_state()
    with pytest.raises(ValueError, match="states of 2 environments, got 1"):
        envs.load_state({"envs": [{}]})
    with pytest.raises(StateNotSaved, match="Mortal"):
        envs.load_state({"envs": [{"layers": []}, {"layers": []}]})
    assert envs.step(np.zeros(2, np.int64)).rewards.tolist() == [1, 1]
    envs.close()


# -- Death ---------------------------------------------------------------------------------------


MORTAL = "mortal:Mortal"


RAISED = r"worker \d \(environments \d to \d\) failed: ArithmeticError: the ball fell off$"
KILLED = r"worker \d \(environments \d to \d\) was ended by SIGKILL; has the machine run out"


@pytest.mark.parametrize(
    ("phase", "by", "message"),
    [
        ("init", "raise", RAISED),
        ("reset", "raise", RAISED),
        ("step", "raise", RAISED),
        ("second_reset", "raise", RAISED),
        ("init", "kill", KILLED),
        ("reset", "kill", KILLED),
        ("step", "kill", KILLED),
        ("second_reset", "kill", KILLED),
        ("step", "exit", r"worker \d \(environments \d to \d\) ended with exit status 7$"),
        ("step", "sys.exit", r"worker \d \(environments \d to \d\) failed: SystemExit: enough$"),
    ],
)
def test_a_worker_that_dies_is_reported(
    phase: str, by: str, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FATE", f"{phase} {by}")
    start = time.monotonic()
    made: list[VectorEnv] = []

    def live() -> None:
        made.append(make(2, num_envs=4, env=MORTAL))
        (envs,) = made
        envs.reset()
        for _ in range(6):
            ended = np.flatnonzero(envs.step(np.zeros(4, np.int64)).terminated)
            if ended.size:
                envs.reset(ended)

    with pytest.raises(WorkerError, match=message) as caught:
        live()
    assert time.monotonic() - start < 10
    assert "\n" not in str(caught.value)
    if by == "raise":
        assert "in _meet" in str(caught.value.__cause__)  # where, for who wrote the environment
    assert bool(made) == (phase != "init")
    for envs in made:
        with pytest.raises(RuntimeError, match="closed"):
            envs.reset()
        envs.close()


@pytest.mark.parametrize("phase", ["reset", "step"])
def test_close_does_not_wait_for_ever(phase: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastdqn.envs.workers._PATIENCE_SECONDS", 0.2)
    monkeypatch.setenv("FATE", f"{phase} sleep")
    envs = make(2, num_envs=2, env=MORTAL)
    if phase == "step":
        envs.reset()
        envs.step(np.zeros(2, np.int64))
        envs.step(np.zeros(2, np.int64))
        envs.send(np.zeros(2, np.int64))
    start = time.monotonic()
    envs.close()
    assert time.monotonic() - start < 5


def test_an_idle_worker_that_is_killed_is_reported() -> None:
    envs = make(2, num_envs=2, env="CartPole-v1")
    assert isinstance(envs, WorkerVector)
    envs.reset()
    os.kill(children()[1], signal.SIGKILL)
    with pytest.raises(WorkerError, match=r"worker 1 \(environment 1\) was ended by SIGKILL"):
        envs.step(np.zeros(2, np.int64))


def test_a_vector_that_is_let_go_of_ends_its_workers() -> None:
    envs = make(2, num_envs=2, env="CartPole-v1")
    assert len(children()) == 2
    del envs  # the fixture looks


def test_a_run_whose_worker_dies_is_saved(tmp_path: Path) -> None:
    config = Config.preset(
        "classic",
        env="CartPole-v1",
        num_envs=2,
        workers=2,
        steps=100_000,
        learning_starts_steps=50,
        log_period_steps=100,
        out=str(tmp_path),
    )
    trainer = Trainer(config)
    reports = trainer.run()
    while next(reports).steps < 300:
        pass
    os.kill(children()[0], signal.SIGKILL)
    with pytest.raises(WorkerError, match="SIGKILL"):
        next(reports)
    (folder,) = tmp_path.iterdir()
    assert (folder / "model.safetensors").exists()
    assert 300 <= trainer.counters.steps < 310


# -- The trainer's process -----------------------------------------------------------------------

# No `if __name__ == "__main__"`: a script may be as short as this.
SCRIPT = """
import sys, time
import numpy as np
from fastdqn.envs.make import default_workers, make_envs

envs = make_envs("CartPole-v1", None, 4, seed=0, workers=2)
envs.reset()
envs.step(np.zeros(4, np.int64))
print("ready", flush=True)
{rest}
"""


def script(rest: str) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-c", SCRIPT.format(rest=rest)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_workers_end_with_their_trainer(number: signal.Signals) -> None:
    with script("time.sleep(1000)") as process:
        workers = children(process.pid)
        assert len(workers) == 2
        process.send_signal(number)
        process.wait()
        deadline = time.monotonic() + 5
        while any(map(runs, workers)) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert not any(map(runs, workers))


def test_workers_leave_signals_to_the_trainer() -> None:
    with script("time.sleep(1.0); envs.step(np.zeros(4, np.int64))") as process:
        for worker in children(process.pid):
            assert os.getpgid(worker) != os.getpgid(process.pid)  # Ctrl-C does not reach it
            os.kill(worker, signal.SIGINT)
            os.kill(worker, signal.SIGTERM)
        assert process.wait(timeout=20) == 0


def test_a_script_that_ends_without_closing_ends() -> None:
    with script("") as process:
        assert process.wait(timeout=20) == 0


def test_a_forked_child_does_not_end_the_workers_of_its_parent() -> None:
    rest = """
import os
child = os.fork()
if child == 0:
    del envs
    os._exit(0)
os.waitpid(child, 0)
envs.step(np.zeros(4, np.int64))
"""
    with script(rest) as process:
        assert process.wait(timeout=20) == 0


def test_workers_do_without_torch_and_without_the_trainers_main() -> None:
    with script("time.sleep(1000)") as process:
        for worker in children(process.pid):
            assert "libtorch" not in Path(f"/proc/{worker}/maps").read_text()
            assert len(list(Path(f"/proc/{worker}/task").iterdir())) == 2  # it, and its watch
        process.kill()
