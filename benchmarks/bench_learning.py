"""Learning: milliseconds for one update, and steps per second of whole training runs.

The limit of an update is the matrix-product peak of the machine: how long its floating-point
operations take where they are nothing but products of large square matrices, by whichever of
PyTorch's two libraries is the faster one. The limit of a training run is its updates and its
emulator and nothing else, so well shared out that no core ever waits. All of this is measured among
the contenders, turn by turn.
"""

from __future__ import annotations

import functools
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import cycle
from typing import Any

import harness
import numpy as np
import torch
from baseline import STACK, Batch, PlainLearner, PlainTrainer, make_env, nature_cnn
from bench_emulation import bare_step
from bench_replay import Script, fill_ours
from harness import OURS, Contender, Effort, Row, agree
from torch import Tensor

from fastdqn.config import Config
from fastdqn.learner import Learner
from fastdqn.native import NativePasses
from fastdqn.trainer import Trainer, train

__all__ = ["breakdown", "training", "update"]

BATCH = 32
NUM_ACTIONS = 4
# Floating-point operations, two for each multiply-add, of the Nature network's layers on one stack:
# outputs x inputs of each.
FIRST_LAYER_FLOP = 2 * (20 * 20 * 32) * (8 * 8 * 4)
FORWARD_FLOP = (
    FIRST_LAYER_FLOP
    + 2 * (9 * 9 * 64) * (4 * 4 * 32)
    + 2 * (7 * 7 * 64) * (3 * 3 * 64)
    + 2 * 512 * 3136
    + 2 * NUM_ACTIONS * 512
)
# Three forward passes (states; next states by both networks) and one backward pass, which costs two
# more but needs no gradient of its input.
UPDATE_FLOP = BATCH * (5 * FORWARD_FLOP - FIRST_LAYER_FLOP)


# What all contenders of a training run share.
CAPACITY = 50_000
EPSILON = 0.1
LEARNING_STARTS_STEPS = 400
TRAIN_PERIOD_STEPS = 4
TARGET_PERIOD_STEPS = 2_000
LEARNING_RATE = 1e-4


def update(effort: Effort) -> Iterator[Row]:
    """Milliseconds for one double-DQN update of 32 transitions, the Nature network, 4 actions."""
    for precision, bound in (("float32", 1.25), ("bfloat16", 1.75)):
        yield update_row(effort, precision, bound)


def update_row(effort: Effort, precision: str, bound: float) -> Row:
    """One precision."""
    dtype: torch.dtype = getattr(torch, precision)
    row = Row("update", f"One double-DQN update of {BATCH} transitions, {precision}", "ms")

    def ours(_: ExitStack) -> Callable[[], float]:
        check_update(precision)
        learner = make_learner(precision)
        batches = cycle([as_staged(batch) for batch in random_batches(16)])
        return harness.repeat(lambda: learner.update(*next(batches)), 5)

    def plain(_: ExitStack) -> Callable[[], float]:
        learner, batches = PlainLearner(NUM_ACTIONS), cycle(random_batches(16))
        return harness.repeat(lambda: learner.update(next(batches)), 5)

    library, products = fastest_product(dtype)
    limit = f"limit: {library} products, {precision}"
    contenders = [
        Contender(OURS, ours, package=None if precision == "float32" else "fastdqn"),
        Contender("plain PyTorch, float32", plain),
        Contender(limit, lambda _: lambda: products() / UPDATE_FLOP),
    ]
    row.add(harness.match(contenders, seconds=effort.seconds))
    row.require_ratio(limit, bound)
    milliseconds = harness.spread(row.figures[limit]).median
    row.notes.append(
        f"an update is {UPDATE_FLOP / 1e9:.2f} GFLOP; the products ran at "
        f"{UPDATE_FLOP / 1e6 / milliseconds:,.0f} GFLOP/s"
    )
    return row


def random_batches(count: int) -> list[Batch]:
    """Batches as the plain memory draws them, of random frames."""
    generator = np.random.default_rng(11)

    def batch() -> Batch:
        windows = generator.integers(256, size=(BATCH, 5, 84, 84), dtype=np.uint8)
        return (
            windows[:, :-1],
            generator.integers(NUM_ACTIONS, size=BATCH),
            generator.integers(-1, 2, size=BATCH).astype(np.float32),
            np.where(generator.random(BATCH) < 0.1, 0.0, 0.99).astype(np.float32),
            windows[:, 1:],
        )

    return [batch() for _ in range(count)]


def as_staged(batch: Batch) -> tuple[Tensor, ...]:
    """The same batch as the trainer's staging lays it out: stacks channels-last."""
    states, actions, rewards, discounts, next_states = map(torch.from_numpy, batch)
    return (
        states.contiguous(memory_format=torch.channels_last),
        actions,
        rewards,
        discounts,
        next_states.contiguous(memory_format=torch.channels_last),
    )


def make_learner(precision: str = "float32") -> Learner:
    """Ours, as a trainer with the plain learner's settings makes it."""
    return Trainer(our_config(1_000, precision=precision)).learner


# How far losses may be apart, relative to theirs, and values, relative to their change in three
# updates: Adam divides each gradient by its own size, which magnifies the rounding of small ones.
# bfloat16 has 8 bits of a number where float32 has 24.
TOLERANCES = {"float32": (1e-4, 0.02), "bfloat16": (0.05, 0.5)}


def check_update(precision: str) -> None:
    """From equal weights, ours and plain PyTorch report equal losses and learn equal values."""
    torch.manual_seed(0)
    loss_bound, change_bound = TOLERANCES[precision]
    exact = precision == "float32"
    ours, plain, other = (
        make_learner(precision),
        PlainLearner(NUM_ACTIONS),
        PlainLearner(NUM_ACTIONS),
    )
    copy_weights(other, ours)  # target networks that differ from the online ones
    ours.copy_target()
    copy_weights(plain, ours)
    plain.target = other.online
    batches = random_batches(3)
    states = batches[0][0]

    def values() -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            mine = ours.online(as_staged(batches[0])[0])
            return mine, plain.online(torch.from_numpy(states).float() / 255)

    before, theirs_before = values()
    close = {"rtol": 1e-4, "atol": 1e-5} if exact else {"rtol": 0.05, "atol": 0.01}
    agree("update: values", torch.allclose(before, theirs_before, **close))
    for batch in batches:
        loss = float(ours.update(*as_staged(batch)).loss)
        expected = float(plain.update(batch))
        near = abs(loss - expected) <= loss_bound * expected
        agree(f"update: loss {loss} against {expected}", near)
    after, theirs_after = values()
    change = float((theirs_after - theirs_before).abs().max())
    apart = float((after - theirs_after).abs().max())
    close_enough = apart <= change_bound * change
    agree(f"update: values {apart} apart after a change of {change}", close_enough)


def copy_weights(plain: PlainLearner, ours: Learner) -> None:
    """Sets our online network to the plain one; its dense layer reads channels first, ours last."""
    with torch.no_grad():
        pairs = zip(ours.online.parameters(), plain.online.parameters(), strict=True)
        for mine, theirs in pairs:
            if theirs.shape == (512, 64 * 7 * 7):
                theirs = theirs.view(512, 64, 7, 7).permute(0, 2, 3, 1).flatten(1)
            mine.copy_(theirs)
    ours.refresh()


Prepare = Callable[[ExitStack], Callable[[], float]]


def training(effort: Effort) -> Iterator[Row]:
    """Steps per second of whole training runs: one match of all, shown as three rows."""
    steps = effort.training_turn_steps
    contenders = [
        Contender("ours 1", our_training(steps)),
        Contender("ours 8", our_training(steps, num_envs=8)),
        Contender("ours 1 bf16", our_training(steps, precision="bfloat16")),
        Contender("ours 8 bf16", our_training(steps, num_envs=8, precision="bfloat16")),
        Contender("alone", learner_alone(steps)),
        Contender("alone bf16", learner_alone(steps, precision="bfloat16")),
        Contender("plain", plain_training(steps)),
        Contender("sb3 1", sb3_training(steps, 1), package="stable-baselines3"),
        Contender("sb3 8", sb3_training(steps, 8), package="stable-baselines3"),
        Contender("tianshou 1", tianshou_training(steps, 1), package="tianshou"),
        Contender("tianshou 8", tianshou_training(steps, 8), package="tianshou"),
        Contender("emulator", emulator_alone(steps), harness.cores(1)),
    ]
    if effort.processes:
        apart = sb3_training(steps, 8, processes=True)
        contenders.append(Contender("sb3 8 processes", apart, package="stable-baselines3"))
    turns = harness.match(contenders, seconds=effort.training_seconds)
    cores = len(os.sched_getaffinity(0))
    for precision in ("", " bf16"):
        pairs = zip(turns.seconds[f"alone{precision}"], turns.seconds["emulator"], strict=False)
        turns.seconds[f"limit{precision}"] = [learner + act / cores for learner, act in pairs]

    alone, limit = "our learner alone", "limit: our learner and act(), no core ever waiting"
    one = Row("training", "Training on Breakout, 1 environment, float32", "steps/s")
    names = {"ours 1": OURS, "sb3 1": SB3, "tianshou 1": TIANSHOU, "plain": PLAIN}
    one.add(turns, {**names, "alone": alone, "limit": limit})
    one.require_ratio(SB3, 3.2)
    eight = Row("training", "Training on Breakout, 8 environments, float32", "steps/s")
    processes = f"{SB3}, in processes"
    names = {"ours 8": OURS, "sb3 8": SB3, "sb3 8 processes": processes, "tianshou 8": TIANSHOU}
    eight.add(turns, {**names, "alone": alone, "limit": limit})
    eight.require_ratio(eight.best([SB3, processes]), 3.2, SB3)
    narrow = Row("training", "Training on Breakout, 1 environment, bfloat16", "steps/s")
    narrow.add(turns, {"ours 1 bf16": OURS, "sb3 1": SB3, "alone bf16": alone, "limit bf16": limit})
    narrow.require_ratio(SB3, 5.0)
    narrow8 = Row("training", "Training on Breakout, 8 environments, bfloat16", "steps/s")
    names = {"ours 8 bf16": OURS, "sb3 8": SB3, "sb3 8 processes": processes}
    narrow8.add(turns, {**names, "alone bf16": alone, "limit bf16": limit})
    narrow8.require_ratio(narrow8.best([SB3, processes]), 5.0, SB3)
    for row in (one, eight, narrow, narrow8):
        row.require_ratio(alone, 0.85)
        row.notes += [
            f"all: batch {BATCH} every 4 steps, skip 4, epsilon {EPSILON}, memory of {CAPACITY:,} "
            f"frames or transitions, target period {TARGET_PERIOD_STEPS:,} steps, learning "
            f"begun; {steps} steps a turn; all rows are of one match",
            "all compute the double target but Stable-Baselines3, which takes the plain maximum",
        ]
        yield row
    yield storage_row(effort)


SB3 = "Stable-Baselines3's DQN, float32"
TIANSHOU = "Tianshou's DQN"
RAW = "fastdqn, raw frames"
PLAIN = "plain PyTorch and numpy"


def storage_row(effort: Effort) -> Row:
    """What training loses by compressing its frames, to within a percent.

    Two runs of the same settings may differ by a percent or two for good, by where their arrays
    came to lie. So there are several matches, each of new runs, with two of raw frames in each,
    whose difference shows what such a comparison can tell. All memories are full, as they are for
    nearly all of a long run, and all runs do the same, bit by bit, which is checked in every turn.
    """
    steps = effort.training_turn_steps
    row = Row("training", "Training on Breakout, frames compressed and raw", "steps/s")
    script, again = Script(), f"{RAW}, another run"
    medians = []
    for _ in range(effort.storage_matches):
        runs = [
            Contender(name, full_training(script, losses, steps, storage))
            for losses in [Losses()]
            for name, storage in ((OURS, "compressed"), (RAW, "raw"), (again, "raw"))
        ]
        before = len(row.ratios(RAW))
        row.add(harness.match(runs, seconds=effort.storage_seconds))
        pairs = [*row.ratios(RAW)[before:], *row.ratios(again)[before:]]
        medians.append(harness.spread(pairs).median)
    row.require(
        f"{row.title}: compressed at least 0.98 times raw",
        medians,
        0.98,
        at_most=False,
        unit="times",
    )
    shown = ", ".join(f"{median:.3f}" for median in medians)
    row.notes += [
        f"compressed over raw in each match of new runs: {shown}; what is required is their median",
        f"all do the same, bit by bit, from full memories of {CAPACITY:,} frames; {steps} steps a "
        "turn",
    ]
    return row


class Losses:
    """That runs which should be the same are, told from the loss after each turn."""

    def __init__(self) -> None:
        self._expected: dict[int, float] = {}

    def compare(self, steps: int, loss: float) -> None:
        """WrongAnswer where another run had another loss after so many steps."""
        expected = self._expected.setdefault(steps, loss)
        same = loss == expected or (math.isnan(loss) and math.isnan(expected))
        agree(f"training: a loss of {loss} by step {steps}, not {expected}", same)


def full_training(script: Script, losses: Losses, steps: int, storage: str) -> Prepare:
    """Our training loop on a memory that is full from the start."""

    def prepare(resources: ExitStack) -> Callable[[], float]:
        trainer = Trainer(our_config(steps, replay_storage=storage))
        fill_ours(trainer.memory, script)
        reports = trainer.run()
        resources.callback(reports.close)  # type: ignore[attr-defined]

        def turn() -> int:
            report = next(reports)
            losses.compare(report.steps, report.loss)
            return report.updates

        return until_learning(turn, steps)

    return prepare


def until_learning(turn: Callable[[], int], steps: int) -> Callable[[], float]:
    """Plays on until learning has begun; then each turn must make an update of every 4th step.

    `turn` plays `steps` steps and returns the updates made since the run began.
    """
    for _ in range(LEARNING_STARTS_STEPS // steps + 1):
        made = turn()
    state = {"updates": made}

    def run() -> float:
        made = turn()
        due = state["updates"] + steps // TRAIN_PERIOD_STEPS
        agree(f"training: {made} updates where {due} were due", made == due)
        state["updates"] = made
        return steps

    return run


def our_training(steps: int, **settings: Any) -> Prepare:
    """The package's own training loop, from one report to the next."""

    def prepare(resources: ExitStack) -> Callable[[], float]:
        reports = train(our_config(steps, **settings))
        resources.callback(reports.close)  # type: ignore[attr-defined]
        return until_learning(lambda: next(reports).updates, steps)

    return prepare


def our_config(report_steps: int, **settings: Any) -> Config:
    """The settings that all contenders share, with a report at every `report_steps`."""
    return Config(
        game="Breakout",
        replay_capacity=CAPACITY,
        learning_starts_steps=LEARNING_STARTS_STEPS,
        train_period_steps=TRAIN_PERIOD_STEPS,
        target_period_steps=TARGET_PERIOD_STEPS,
        batch_size=BATCH,
        learning_rate=LEARNING_RATE,
        optimizer_epsilon=1.5e-4,
        epsilon_start=EPSILON,
        epsilon_end=EPSILON,
        evaluation_period_steps=None,
        log_period_steps=report_steps,
        save_period_steps=10**9,
        device="cpu",
        out=None,
        **settings,
    )


def learner_alone(steps: int, precision: str = "float32") -> Prepare:
    """Updates on batches that lie ready: what the rest of the loop could at best leave room for."""

    def prepare(_: ExitStack) -> Callable[[], float]:
        learner = make_learner(precision)
        batches = cycle([as_staged(batch) for batch in random_batches(16)])

        def turn() -> float:
            for _ in range(steps // TRAIN_PERIOD_STEPS):
                learner.update(*next(batches))
            return steps

        return turn

    return prepare


def plain_training(steps: int) -> Prepare:
    """The baseline's."""

    def prepare(_: ExitStack) -> Callable[[], float]:
        trainer = PlainTrainer(
            "ALE/Breakout-v5",
            capacity=CAPACITY,
            epsilon=EPSILON,
            learning_starts_steps=LEARNING_STARTS_STEPS,
            batch_size=BATCH,
            train_period_steps=TRAIN_PERIOD_STEPS,
            target_period_steps=TARGET_PERIOD_STEPS,
            learning_rate=LEARNING_RATE,
        )

        def turn() -> int:
            trainer.train(steps)
            return trainer.updates

        return until_learning(turn, steps)

    return prepare


def sb3_training(steps: int, count: int, *, processes: bool = False) -> Prepare:
    """Stable-Baselines3's, on its own wrappers and network."""

    def prepare(resources: ExitStack) -> Callable[[], float]:
        from stable_baselines3 import DQN
        from stable_baselines3.common.env_util import make_atari_env
        from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecFrameStack

        kind: Any = SubprocVecEnv if processes else DummyVecEnv
        envs = make_atari_env("BreakoutNoFrameskip-v4", n_envs=count, seed=0, vec_env_cls=kind)
        stacked = VecFrameStack(envs, n_stack=4)
        resources.callback(stacked.close)
        model: Any = DQN(
            "CnnPolicy",
            stacked,
            learning_rate=LEARNING_RATE,
            buffer_size=CAPACITY,
            learning_starts=LEARNING_STARTS_STEPS,
            batch_size=BATCH,
            # In steps of the vector; as many updates as make it one for every fourth transition.
            train_freq=max(1, TRAIN_PERIOD_STEPS // count),
            gradient_steps=max(1, count // TRAIN_PERIOD_STEPS),
            target_update_interval=TARGET_PERIOD_STEPS,
            exploration_initial_eps=EPSILON,
            exploration_final_eps=EPSILON,
            optimize_memory_usage=False,
            device="cpu",
            seed=0,
        )
        check_network(model.q_net)

        def turn() -> int:
            model.learn(steps, reset_num_timesteps=False, log_interval=10**9)
            return int(model._n_updates)

        return until_learning(turn, steps)

    return prepare


def tianshou_training(steps: int, count: int) -> Prepare:
    """Tianshou's, by its collector and update as its trainer calls them, on gymnasium's wrappers.

    Its own Atari wrappers do not import with numpy 2.4.
    """

    def prepare(resources: ExitStack) -> Callable[[], float]:
        from gymnasium.wrappers import ClipReward, FrameStackObservation
        from tianshou.algorithm.modelfree.dqn import DQN, DiscreteQLearningPolicy
        from tianshou.algorithm.optim import AdamOptimizerFactory
        from tianshou.data import Collector, VectorReplayBuffer
        from tianshou.env import DummyVectorEnv
        from tianshou.env.atari.atari_network import DQNet, ScaledObsInputActionReprNet
        from tianshou.utils.torch_utils import policy_within_training_step

        def stacked() -> Any:
            return ClipReward(FrameStackObservation(make_env("ALE/Breakout-v5"), STACK), -1, 1)

        envs = DummyVectorEnv([stacked for _ in range(count)])
        resources.callback(envs.close)
        network = ScaledObsInputActionReprNet(DQNet(c=STACK, h=84, w=84, action_shape=NUM_ACTIONS))
        check_network(network)
        policy = DiscreteQLearningPolicy(
            model=network, action_space=envs.action_space[0], eps_training=EPSILON
        )
        learner: Any = DQN(
            policy=policy,
            optim=AdamOptimizerFactory(lr=LEARNING_RATE, eps=1.5e-4),
            target_update_freq=TARGET_PERIOD_STEPS // TRAIN_PERIOD_STEPS,
        )
        buffer: Any = VectorReplayBuffer(
            CAPACITY,
            buffer_num=count,
            stack_num=STACK,
            ignore_obs_next=True,
            save_only_last_obs=True,
        )
        collector: Any = Collector(learner, envs, buffer, exploration_noise=True)
        collector.reset()
        collector.collect(n_step=LEARNING_STARTS_STEPS)
        collected, made = max(count, TRAIN_PERIOD_STEPS), {"updates": 0}

        def turn() -> int:
            for _ in range(steps // collected):
                with policy_within_training_step(policy):
                    collector.collect(n_step=collected)
                    for _ in range(collected // TRAIN_PERIOD_STEPS):
                        learner.update(sample_size=BATCH, buffer=buffer)
                        made["updates"] += 1
            return made["updates"]

        return until_learning(turn, steps)

    return prepare


def check_network(network: torch.nn.Module) -> None:
    """As many weights as the Nature network has."""
    weights = sum(part.numel() for part in network.parameters())
    expected = sum(part.numel() for part in nature_cnn(NUM_ACTIONS).parameters())
    agree(f"training: {weights:,} weights, not {expected:,}", weights == expected)


def emulator_alone(steps: int) -> Prepare:
    """One game on one core, and no screen of it fetched."""

    def prepare(_: ExitStack) -> Callable[[], float]:
        step = bare_step(1)
        actions = np.random.default_rng(0).integers(NUM_ACTIONS, size=(steps, 1))

        def turn() -> float:
            for action in actions:
                step(action)
            return steps

        return turn

    return prepare


def fastest_product(dtype: torch.dtype) -> tuple[str, Callable[[], float]]:
    """The faster of PyTorch's matrix products for this dtype, as a turn that counts its FLOP."""
    size = 1024
    a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    products: dict[str, Callable[[], object]] = {"torch.mm": lambda: torch.mm(a, b, out=out)}
    if hasattr(torch.ops.mkldnn, "_linear_pointwise"):  # oneDNN, which convolutions go through
        one_dnn = torch.ops.mkldnn._linear_pointwise
        products["oneDNN"] = lambda: one_dnn(a, b, None, "none", [], "")
    seconds = dict.fromkeys(products, math.inf)
    for _ in range(5):  # the best of a few: a disturbance must not decide
        for name, product in products.items():
            start = time.perf_counter()
            harness.repeat(product, 8)()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    name = min(seconds, key=lambda name: seconds[name])
    turn = harness.repeat(products[name], 20)
    return name, lambda: turn() * 2 * size**3


def breakdown(effort: Effort) -> Iterator[Row]:
    """Where the time of a training run goes, and that of an update: milliseconds of each part."""
    for count in (1, 8):
        yield breakdown_row(effort, count)
    for precision in ("float32", "bfloat16"):
        yield passes_row(effort, precision)


def breakdown_row(effort: Effort, count: int) -> Row:
    """One number of environments. The clocks of the parts slow the run by about a percent."""
    steps = effort.training_turn_steps
    environments = f"{count} environment{'s' * (count > 1)}"
    row = Row("breakdown", f"One update and its four steps, {environments}", "ms", "share")
    trainer = Trainer(our_config(steps, num_envs=count))
    parts = Parts()
    parts.watch(trainer.actor, "act", "acting: stacks and a forward pass")
    parts.watch(trainer.envs, "send", "environments: handing out actions")
    parts.watch(trainer.envs, "receive", "environments: emulation, or waiting for it")
    # What of it is left when the next is due, where it is computed beside the steps.
    parts.watch(trainer, "_finish_learning", "the update")
    parts.watch(trainer, "_update", "the update")
    parts.watch(trainer.staging, "prefetch", "drawing what to gather")
    wait = "waiting for a batch"
    parts.watch_entry(trainer.staging, "batch", wait)
    trainer.memory = parts.watched(trainer.memory, "append", "append to the memory")
    reports = trainer.run()
    with ExitStack() as resources:
        resources.callback(reports.close)  # type: ignore[attr-defined]
        until_learning(lambda: next(reports).updates, steps)
        updates = steps // TRAIN_PERIOD_STEPS
        end = time.perf_counter() + effort.peer_seconds
        turns = harness.Turns()
        while time.perf_counter() < end:
            parts.seconds = dict.fromkeys(parts.seconds, 0.0)
            start = time.perf_counter()
            next(reports)
            whole = time.perf_counter() - start
            rest = whole - sum(parts.seconds.values())
            found = {OURS: whole, **parts.seconds, "everything else": rest}
            for name, seconds in found.items():
                turns.seconds.setdefault(name, []).append(seconds / updates)
    row.add(turns)
    waits, learns = row.figures[wait], row.figures["the update"]
    text = f"{row.title}: waiting for a batch at most 2 % of the update"
    shares = [w / u for w, u in zip(waits, learns, strict=True)]
    row.require(text, shares, 0.02, at_most=True, unit="of it")
    return row


class Parts:
    """Clocks on some methods of a trainer's parts."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def timed(self, call: Callable[..., Any], part: str) -> Callable[..., Any]:
        """The same function, with its attributes, and with its time counted."""
        self.seconds[part] = 0.0

        @functools.wraps(call, ("__doc__",))
        def timed(*arguments: Any, **named: Any) -> Any:
            start = time.perf_counter()
            try:
                return call(*arguments, **named)
            finally:
                self.seconds[part] += time.perf_counter() - start

        return timed

    def watch(self, owner: Any, method: str, part: str) -> None:
        """Counts the time of a method of a Python object."""
        setattr(owner, method, self.timed(getattr(owner, method), part))

    def watch_entry(self, owner: Any, method: str, part: str) -> None:
        """Counts the time to enter the context that a method returns."""
        make = getattr(owner, method)

        enter = self.timed(ExitStack.enter_context, part)

        @contextmanager
        def entered(*arguments: Any) -> Iterator[Any]:
            with ExitStack() as inner:
                yield enter(inner, make(*arguments))

        setattr(owner, method, entered)

    def watched(self, owner: Any, method: str, part: str) -> Any:
        """A stand-in for an object whose methods cannot be set."""
        timed = self.timed(getattr(owner, method), part)

        class StandIn:
            def __getattr__(self, name: str) -> Any:
                return timed if name == method else getattr(owner, name)

            def __len__(self) -> int:
                return len(owner)

        return StandIn()


def passes_row(effort: Effort, precision: str) -> Row:
    """An update by its calls of the C++ core, or by kind of PyTorch's operation without those."""
    learner = make_learner(precision)
    online, target = learner._online, learner._target
    if not isinstance(online, NativePasses):
        return operations_row(effort, learner, precision)
    row = Row("breakdown", f"One update, call by call, {precision}", "ms", "share")
    parts = Parts()
    parts.watch(target, "values", "the target network's values of the next states")
    parts.watch(online, "forward", "the online network's values of states and next states")
    parts.watch(online, "backward", "gradients")
    parts.watch(learner, "_loss", "the loss and its gradient")
    parts.watch(learner.optimizer, "step", "the optimizer")
    parts.watch(online, "refresh", "taking over the new weights")
    assert learner.overlaps
    batches = [as_staged(batch) for batch in random_batches(16)]
    turns = harness.Turns()
    end = time.perf_counter() + effort.peer_seconds
    while time.perf_counter() < end or not turns.seconds:
        parts.seconds = dict.fromkeys(parts.seconds, 0.0)
        start = time.perf_counter()
        for batch in batches:
            learner._update_in_parts(*batch)
        whole = time.perf_counter() - start
        rest = whole - sum(parts.seconds.values())
        start = time.perf_counter()
        for batch in batches:
            learner.update(*batch)
        at_once = time.perf_counter() - start
        found = {OURS: whole, **parts.seconds, "Python in between": rest}
        found["the same in one call, as in training"] = at_once
        for name, value in found.items():
            turns.seconds.setdefault(name, []).append(value / len(batches))
    row.add(turns)
    return row


# Kinds of operations, by what PyTorch's profiler calls them; the first that fits.
OPERATIONS = (
    ("convolutions, backward", ("convolution_backward",)),
    ("convolutions, forward", ("convolution",)),
    ("dense layers", ("linear", "addmm", "mm")),
    ("the optimizer", ("adam", "rmsprop", "optimizer")),
    ("conversions and copies", ("copy", "clone", "contiguous")),
)


def operations_row(effort: Effort, learner: Learner, precision: str) -> Row:
    """An update by kind of operation, as PyTorch's profiler sees it, which slows it somewhat."""
    row = Row("breakdown", f"One update by kind of operation, {precision}", "ms", "share")
    batches = [as_staged(batch) for batch in random_batches(16)]
    for batch in batches:
        learner.update(*batch)
    turns = harness.Turns()
    end = time.perf_counter() + effort.peer_seconds
    while time.perf_counter() < end:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
            start = time.perf_counter()
            for batch in batches:
                learner.update(*batch)
            whole = time.perf_counter() - start
        seconds = {OURS: whole, **dict.fromkeys((name for name, _ in OPERATIONS), 0.0)}
        for event in profile.key_averages():
            kind = kind_of(event.key)
            if kind is not None:
                seconds[kind] += event.self_cpu_time_total / 1e6
        rest = "everything else, Python included"
        seconds[rest] = 2 * whole - sum(seconds.values())
        for name, value in seconds.items():
            turns.seconds.setdefault(name, []).append(value / len(batches))
    row.add(turns)
    return row


def kind_of(event: str) -> str | None:
    """The kind of an operation of that name."""
    for kind, words in OPERATIONS:
        if any(word in event.lower() for word in words):
            return kind
    return None
