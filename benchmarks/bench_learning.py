"""Learning: milliseconds for one update, and steps per second of whole training runs.

The limit of an update is the matrix-product peak of the machine: how long its floating-point
operations take where they are nothing but products of large square matrices, by whichever of
PyTorch's two libraries is the faster one. The limit of a training run is the emulator alone and
those products, one after the other. Both are measured among the contenders, turn by turn.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any

import harness
import numpy as np
import torch
from baseline import Batch, PlainLearner, PlainTrainer
from bench_emulation import bare_step
from harness import OURS, Contender, Effort, Row, agree
from torch import Tensor

from fastdqn.config import Config
from fastdqn.learner import Learner
from fastdqn.trainer import Trainer, train

__all__ = ["training", "update"]

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
    check_update()
    library, products = fastest_product(torch.float32)
    row = Row("update", f"One double-DQN update of {BATCH} transitions, float32", "ms")
    plain, batches = PlainLearner(NUM_ACTIONS), random_batches(16)
    ours = make_learner()
    theirs, mine = cycle(batches), cycle([as_staged(batch) for batch in batches])
    contenders = [
        Contender(OURS, harness.repeat(lambda: ours.update(*next(mine)), 5)),
        Contender("plain PyTorch", harness.repeat(lambda: plain.update(next(theirs)), 5)),
        Contender(f"limit: {library} products", lambda: products() / UPDATE_FLOP),
    ]
    harness.measure(row, contenders, seconds=effort.seconds)
    milliseconds = harness.spread(row.figures(contenders[-1].name)).median
    row.notes.append(
        f"an update is {UPDATE_FLOP / 1e9:.2f} GFLOP; the products ran at "
        f"{UPDATE_FLOP / 1e6 / milliseconds:,.0f} GFLOP/s"
    )
    yield row


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


def make_learner() -> Learner:
    """Ours, as a trainer with the plain learner's settings makes it."""
    return Trainer(our_config(1_000)).learner


def check_update() -> None:
    """From equal weights, ours and plain PyTorch report equal losses and learn equal values."""
    torch.manual_seed(0)
    ours, plain, other = make_learner(), PlainLearner(NUM_ACTIONS), PlainLearner(NUM_ACTIONS)
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
    agree("update: values", torch.allclose(before, theirs_before, rtol=1e-4, atol=1e-5))
    for batch in batches:
        loss = float(ours.update(*as_staged(batch)).loss)
        expected = float(plain.update(batch))
        agree(f"update: loss {loss} against {expected}", abs(loss - expected) <= 1e-3 * expected)
    after, theirs_after = values()
    change = float((theirs_after - theirs_before).abs().max())
    # Adam divides each gradient by its own size, which magnifies the rounding of small ones.
    apart = float((after - theirs_after).abs().max())
    agree(f"update: values {apart} apart after a change of {change}", apart <= 0.02 * change)


def copy_weights(plain: PlainLearner, ours: Learner) -> None:
    """Sets our online network to the plain one; its dense layer reads channels first, ours last."""
    with torch.no_grad():
        pairs = zip(ours.online.parameters(), plain.online.parameters(), strict=True)
        for mine, theirs in pairs:
            if theirs.shape == (512, 64 * 7 * 7):
                theirs = theirs.view(512, 64, 7, 7).permute(0, 2, 3, 1).flatten(1)
            mine.copy_(theirs)


def training(effort: Effort) -> Iterator[Row]:
    """Steps per second of whole training runs."""
    steps = effort.training_turn_steps
    row = Row("training", f"Training on Breakout, batch {BATCH} every 4 steps, float32", "steps/s")
    contenders = [
        Contender(OURS, our_training(steps)),
        Contender("plain PyTorch and numpy", plain_training(steps)),
        Contender("limit: act() and products, in turn", training_limit(steps)),
    ]
    try:
        contenders.append(Contender(SB3, sb3_training(steps)))
    except ImportError as error:
        row.notes.append(f"Stable-Baselines3 not measured: {error}; pip install 'fastdqn[bench]'")
    harness.measure(row, contenders, seconds=effort.training_seconds)
    row.notes += [
        f"all: one environment, skip 4, epsilon {EPSILON}, memory of {CAPACITY:,} frames or "
        f"transitions, target period {TARGET_PERIOD_STEPS:,} steps, learning "
        f"begun; {steps} steps a turn",
        "fastdqn and plain compute the double target, Stable-Baselines3 the plain maximum",
    ]
    row.require_ratio(SB3, 2.2)
    yield row


SB3 = "Stable-Baselines3's DQN"


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


def our_training(steps: int) -> Callable[[], float]:
    """The package's own training loop, from one report to the next."""
    reports = train(our_config(steps))
    return until_learning(lambda: next(reports).updates, steps)


def our_config(report_steps: int) -> Config:
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
        log_period_steps=report_steps,
        save_period_steps=10**9,
        device="cpu",
        out=None,
    )


def plain_training(steps: int) -> Callable[[], float]:
    """The baseline's."""
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


def sb3_training(steps: int) -> Callable[[], float]:
    """Stable-Baselines3's, on its own wrappers and network. Raises ImportError without it."""
    from stable_baselines3 import DQN
    from stable_baselines3.common.env_util import make_atari_env
    from stable_baselines3.common.vec_env import VecFrameStack

    env = VecFrameStack(make_atari_env("BreakoutNoFrameskip-v4", n_envs=1, seed=0), n_stack=4)
    model: Any = DQN(
        "CnnPolicy",
        env,
        learning_rate=LEARNING_RATE,
        buffer_size=CAPACITY,
        learning_starts=LEARNING_STARTS_STEPS,
        batch_size=BATCH,
        train_freq=TRAIN_PERIOD_STEPS,
        gradient_steps=1,
        target_update_interval=TARGET_PERIOD_STEPS,
        exploration_initial_eps=EPSILON,
        exploration_final_eps=EPSILON,
        optimize_memory_usage=False,
        device="cpu",
        seed=0,
    )

    def turn() -> int:
        model.learn(steps, reset_num_timesteps=False, log_interval=10**9)
        return int(model._n_updates)

    return until_learning(turn, steps)


def training_limit(steps: int) -> Callable[[], float]:
    """The emulator alone, then products of as many operations as the acting and learning have."""
    step, (_, products) = bare_step(1), fastest_product(torch.float32)
    actions = np.random.default_rng(0).integers(NUM_ACTIONS, size=(steps, 1))
    flop = steps * ((1 - EPSILON) * FORWARD_FLOP + UPDATE_FLOP / TRAIN_PERIOD_STEPS)

    def run() -> float:
        for action in actions:
            step(action)
        done = 0.0
        while done < flop:
            done += products()
        return steps

    return run


def fastest_product(dtype: torch.dtype) -> tuple[str, Callable[[], float]]:
    """The faster of PyTorch's matrix products for this dtype, as a turn that counts its FLOP."""
    size = 1024
    a, b = (torch.randn(size, size).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    products: dict[str, Callable[[], object]] = {"torch.mm": lambda: torch.mm(a, b, out=out)}
    if hasattr(torch.ops.mkldnn, "_linear_pointwise"):  # oneDNN, which convolutions go through
        one_dnn = torch.ops.mkldnn._linear_pointwise
        products["oneDNN"] = lambda: one_dnn(a, b, None, "none", [], "")
    seconds: dict[str, float] = {}
    for name, product in products.items():
        product()
        start = time.perf_counter()
        harness.repeat(product, 20)()
        seconds[name] = time.perf_counter() - start
    name = min(seconds, key=lambda name: seconds[name])
    turn = harness.repeat(products[name], 20)
    return name, lambda: turn() * 2 * size**3
