"""Checks everything that needs a GPU, in one run of under 8 minutes, and writes a report.

    python benchmarks/gpu_check.py --out report        # on a machine with a CUDA device
    python benchmarks/gpu_check.py --dry-run           # the same checks, small, on a CPU

Each check says passed or failed, with its figures and its time; one that fails stops no other. The
report, `gpu_check.md` and `gpu_check.json`, is written anew after each check. The exit status is 0
where all have passed. What only a GPU can show, such as streams that lag, is left out of a dry run.
"""

from __future__ import annotations

import argparse
import dataclasses
import faulthandler
import itertools
import json
import platform
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fastdqn.actor import GreedyPolicy
from fastdqn.checkpoint import load_agent
from fastdqn.config import Config
from fastdqn.device_replay import DeviceRing
from fastdqn.graphs import Replayed, replayed
from fastdqn.lanes import CudaLane, Lane, make_lane
from fastdqn.learner import Learner, MetricMeans
from fastdqn.machine import exact_float32
from fastdqn.networks import build_network, empty_stacks
from fastdqn.optimizers import make_optimizer
from fastdqn.replay import ReplayMemory
from fastdqn.staging import Gatherer, InlineGatherer, Staging, make_gatherer
from fastdqn.trainer import Trainer

SHAPE = (84, 84)
STACK = 4
BATCH = 32
TOTAL_SECONDS = 8 * 60
PROJECTED_FRAMES = 200_000_000
SLEEP_CYCLES = 2_000_000  # of a kernel that only waits: about a millisecond


@dataclass
class Outcome:
    """What one check found."""

    name: str
    passed: bool
    seconds: float
    budget_seconds: float
    text: str
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """A check and the seconds that it may take. It returns its figures, or raises."""

    name: str
    budget_seconds: float
    run: Callable[[Setting], dict[str, Any]]
    needs_gpu: bool = False


@dataclass(frozen=True)
class Setting:
    """Where and how large the checks run."""

    device: torch.device
    small: bool

    @property
    def is_gpu(self) -> bool:
        return self.device.type == "cuda"

    def size(self, full: int, small: int) -> int:
        return small if self.small else full


class Failed(Exception):
    """A check's finding that something is wrong."""


def require(holds: bool, what: str) -> None:
    if not holds:
        raise Failed(what)


# -- parts that the checks share ------------------------------------------------------------------


def make_memory(frames: int = 2_000) -> ReplayMemory:
    """Full of frames of noise, in episodes of 97 steps."""
    memory = ReplayMemory(frames, SHAPE, stack=STACK, seed=1)
    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (64, 1, *SHAPE)).astype(np.uint8)
    no = np.array([False])
    memory.begin(images[0])
    for step in range(frames + frames // 3):
        ends = np.array([step % 97 == 96])
        memory.append(rng.integers(4, size=1), rng.normal(size=1), images[step % 64], ends, no)
        if ends[0]:
            memory.begin(images[step % 61])
    return memory


def make_learner(device: torch.device, dtype: torch.dtype = torch.float32) -> Learner:
    """The default learner of a game with four actions, always with the same weights."""
    config = Config(game="Breakout").resolved()
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(3)
        network = build_network(SHAPE, 4, **config.network_options())
    network.to(device)
    optimizer = make_optimizer(
        config.optimizer,
        network.parameters(),
        learning_rate=config.learning_rate,
        epsilon=config.optimizer_epsilon,
        decay=config.rmsprop_decay,
    )
    return Learner(
        network,
        optimizer,
        num_actions=4,
        double=True,
        loss=config.loss,
        loss_reduction=config.loss_reduction,
        max_grad_norm=None,
        target_tau=None,
        dtype=dtype,
    )


def make_staging(
    memory: ReplayMemory, device: torch.device, lane: Lane, *, ring: bool = False
) -> Staging:
    options: dict[str, Any] = {"frame_shape": SHAPE, "dtype": np.uint8}
    if ring:
        gatherer: Gatherer = InlineGatherer(memory.sample_slots_into)
        device_ring = DeviceRing(memory, lane, device, rows=1, **options)
    else:
        gatherer, device_ring = make_gatherer(memory, 1), None
    return Staging(gatherer, lane, batch_size=BATCH, stack=STACK, ring=device_ring, **options)


def host_batches(count: int) -> list[tuple[Tensor, ...]]:
    memory = make_memory()
    batches = []
    for _ in range(count):
        batch = memory.sample(BATCH)
        parts = (batch.states, batch.actions, batch.rewards, batch.discounts, batch.next_states)
        batches.append(tuple(torch.from_numpy(part.copy()) for part in parts))
    return batches


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def weights_of(learner: Learner) -> Tensor:
    """All of them, one behind the other, on the host."""
    return torch.cat([weight.detach().cpu().flatten() for weight in learner.online.parameters()])


def gradient_of(learner: Learner) -> Tensor:
    """The last update's, in the same order."""
    gradients = (weight.grad for weight in learner.online.parameters())
    return torch.cat([grad.cpu().flatten() for grad in gradients if grad is not None])


# -- slots ----------------------------------------------------------------------------------------


class Counting:
    """Each batch holds its own number everywhere."""

    def __init__(self) -> None:
        self.batches = 0

    def __call__(self, *arrays: Any) -> None:
        self.batches += 1
        for array in arrays:
            array[...] = self.batches % 251


def read_batches(setting: Setting, lane: Lane, hold: str, count: int) -> bool:
    """Whether every batch arrived whole, while one of the two streams is held busy."""
    staging = Staging(
        InlineGatherer(Counting()),
        lane,
        batch_size=BATCH,
        stack=STACK,
        frame_shape=SHAPE,
        dtype=np.uint8,
    )
    seen = torch.empty((count, 10), device=setting.device, dtype=torch.float64)
    for number in range(count):
        if setting.is_gpu and hold == "copying":
            lane.queue_copying(partial(_sleep, SLEEP_CYCLES))
        with staging.batch() as batch:
            if setting.is_gpu and hold == "computing":
                _sleep(SLEEP_CYCLES)
            for part, tensor in enumerate(batch):
                seen[number, 2 * part] = tensor.min()
                seen[number, 2 * part + 1] = tensor.max()
    staging.close()
    numbers = torch.arange(1, count + 1, dtype=torch.float64) % 251
    return bool((seen.cpu() == numbers.unsqueeze(1)).all())


def _sleep(cycles: int) -> None:
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


def check_slots(hold: str, setting: Setting) -> dict[str, Any]:
    """A slot is neither refilled while it is copied nor overwritten while it is read."""
    count = setting.size(400, 20)
    require(read_batches(setting, make_lane(setting.device), hold, count), "a batch was torn")
    return {"batches": count}


class Unguarded(CudaLane):
    """Computing does not wait for copies: what the guard is there for."""

    def compute_waits_for(self, event: Any) -> None:
        pass


def check_control(setting: Setting) -> dict[str, Any]:
    """Without a guard the check above does find torn batches."""
    whole = read_batches(setting, Unguarded(setting.device), "copying", 50)
    require(not whole, "an unguarded slot was not noticed, so the checks of slots prove nothing")
    return {"torn batches noticed": True}


def check_batches(ring: bool, setting: Setting) -> dict[str, Any]:
    """Batches on the device are the memory's own, bit for bit, also while frames are added."""
    count = setting.size(200, 10)
    memory, twin = make_memory(), make_memory()
    lane = make_lane(setting.device)
    staging = make_staging(memory, setting.device, lane, ring=ring)
    images = np.random.default_rng(5).integers(0, 256, (64, 1, *SHAPE)).astype(np.uint8)
    no = np.array([False])
    for step in range(count):
        staging.prefetch(2)
        for _ in range(2):
            if setting.is_gpu and step % 5 == 0:
                lane.queue_copying(partial(_sleep, SLEEP_CYCLES // 4))
            expected = twin.sample(BATCH)
            with staging.batch() as batch:
                for name, tensor in batch._asdict().items():
                    same = np.array_equal(tensor.cpu().numpy(), getattr(expected, name))
                    require(same, f"{name} of batch {step} differ from the memory's")
        memory.append(np.array([1]), np.array([0.5]), images[step % 64], no, no)
        staging.stored(images[step % 64])
        twin.append(np.array([1]), np.array([0.5]), images[step % 64], no, no)
    staging.close()
    return {"batches": 2 * count}


# -- numbers --------------------------------------------------------------------------------------


def check_parity(dtype: torch.dtype, setting: Setting) -> dict[str, Any]:
    """Losses and gradients are those of the CPU in float32, within the dtype's rounding.

    Rounding to bfloat16 (8 bits) in every layer comes to some percent of the whole gradient; a
    wrong factor, order or sign would be far beyond that.
    """
    tolerance = 1e-4 if dtype == torch.float32 else 0.1
    learner, reference = make_learner(setting.device, dtype), make_learner(torch.device("cpu"))
    for each in (learner, reference):
        each.overlaps = False  # the core's whole update leaves no gradients behind
    worst_loss = worst_gradient = 0.0
    for batch in host_batches(setting.size(20, 3)):
        # Each update from the same weights: errors of one step, not those that grow over many.
        with torch.no_grad():
            torch._foreach_copy_([*learner.online.parameters()], [*reference.online.parameters()])
        learner.refresh()
        loss = learner.update(*(part.to(setting.device) for part in batch)).loss
        expected = reference.update(*batch).loss
        worst_loss = max(worst_loss, abs(float(loss) / float(expected) - 1))
        gradient, true_gradient = gradient_of(learner), gradient_of(reference)
        error = (gradient - true_gradient).norm() / true_gradient.norm()
        worst_gradient = max(worst_gradient, error.item())
    found = f"losses differ by {worst_loss:.1e}, gradients by {worst_gradient:.1e} of themselves"
    require(max(worst_loss, worst_gradient) < tolerance, found)
    return {
        "worst relative loss": worst_loss,
        "worst relative gradient": worst_gradient,
        "tolerance": tolerance,
    }


def check_graph(dtype: torch.dtype, setting: Setting) -> dict[str, Any]:
    """Updates and actions by CUDA graphs are those without, target copies in between."""
    graphed, eager = (make_learner(setting.device, dtype) for _ in range(2))
    means, eager_means = MetricMeans(setting.device), MetricMeans(setting.device)
    update = replayed(lambda *batch: means.add(graphed.update(*batch)), setting.device)
    lane = make_lane(setting.device)
    stacks = empty_stacks(8, STACK, SHAPE, np.uint8, pinned=lane.pinned)
    policy = GreedyPolicy(graphed.values, stacks, lane, partial(replayed, device=setting.device))
    slots = [tuple(part.to(setting.device) for part in batch) for batch in host_batches(2)]
    agreed = total = 0
    for number, batch in enumerate(host_batches(setting.size(60, 8))):
        slot = slots[number % 2]
        for target, source in zip(slot, batch, strict=True):
            target.copy_(source)
        update(*slot)
        eager_means.add(eager.update(*slot))
        if number % 20 == 7:
            graphed.copy_target()
            eager.copy_target()
        stacks.copy_(batch[0][:8])
        actions = torch.from_numpy(policy().copy())
        expected = graphed.values(stacks.to(setting.device)).argmax(1).cpu()
        agreed += int((actions == expected).sum())
        total += len(actions)
    distance = (weights_of(graphed) - weights_of(eager)).abs().max().item()
    if isinstance(update, Replayed):
        require(update.recorded == 2, f"{update.recorded} of 2 graphs were recorded: see the log")
    require(agreed == total, f"{total - agreed} of {total} actions are not those of the weights")
    # Kernels may add up in another order each time; updates move weights by up to 1e-4.
    require(distance < 1e-4, f"weights differ by {distance:.2e} after {number + 1} updates")
    loss, eager_loss = means.read()[0], eager_means.read()[0]
    require(abs(loss / eager_loss - 1) < 1e-2, f"mean losses differ: {loss} and {eager_loss}")
    return {"largest difference of weights": distance, "bit-equal": distance == 0}


def check_flat_memory(setting: Setting) -> dict[str, Any]:
    """After the first hundreds of updates the GPU's allocator asks for nothing more."""
    updates = setting.size(3_000, 200)
    memory = make_memory()
    learner, means = make_learner(setting.device), MetricMeans(setting.device)
    update = replayed(lambda *batch: means.add(learner.update(*batch)), setting.device)
    staging = make_staging(memory, setting.device, make_lane(setting.device))
    marks = []
    for number in range(updates):
        with staging.batch() as batch:
            update(*batch)
        if number % 100 == 99:
            means.read()
            marks.append(torch.cuda.memory_reserved(setting.device))
    staging.close()
    require(len(set(marks[1:])) == 1, f"reserved bytes went from {marks[1]} to {marks[-1]}")
    return {"reserved MB": marks[-1] / 1e6, "updates": updates}


# -- speed ----------------------------------------------------------------------------------------


def check_update_rate(setting: Setting) -> dict[str, Any]:
    """Updates a second by themselves, with batches on the way: what the learner could sustain."""
    seconds = setting.size(3, 0) + 0.3
    figures: dict[str, Any] = {}
    for name, dtype, graph, ring in (
        ("float32, one kernel after another", torch.float32, False, False),
        ("float32, graph", torch.float32, True, False),
        ("bfloat16, graph", torch.bfloat16, True, False),
        ("bfloat16, graph, frames on the device", torch.bfloat16, True, True),
    ):
        learner, means = make_learner(setting.device, dtype), MetricMeans(setting.device)

        def once(*batch: Tensor, learner: Learner = learner, means: MetricMeans = means) -> None:
            means.add(learner.update(*batch))

        update = replayed(once, setting.device) if graph else once
        memory = make_memory()
        staging = make_staging(memory, setting.device, make_lane(setting.device), ring=ring)

        def run(
            number: int,
            staging: Staging = staging,
            update: Callable[..., object] = update,
        ) -> None:
            for _ in range(number):
                staging.prefetch(1)
                with staging.batch() as batch:
                    update(*batch)

        run(8)
        synchronize(setting.device)
        began, updates = time.perf_counter(), 0
        while time.perf_counter() - began < seconds:
            run(10)
            updates += 10
        synchronize(setting.device)
        figures[f"updates/s: {name}"] = updates / (time.perf_counter() - began)
        staging.close()
    return figures


def check_run(num_envs: int, workers: int, replay_device: str, setting: Setting) -> dict[str, Any]:
    """A whole run of Breakout: its frames a second once it learns, and 200M frames at that rate."""
    seconds = 25.0
    if setting.small:
        num_envs, workers = min(num_envs, 4), min(workers, 1)
    with tempfile.TemporaryDirectory() as folder:
        config = Config(
            game="Breakout",
            num_envs=num_envs,
            workers=workers,
            replay_capacity=setting.size(100_000, 1_000),
            learning_starts_steps=setting.size(2_000, 100),
            hours=seconds / 3600,
            steps=setting.size(10**9, 480),
            epsilon_start=0.01,  # so that the network is asked at every step
            log_period_steps=setting.size(2_000, 100),
            device=str(setting.device),
            replay_device=replay_device if setting.is_gpu else "host",  # type: ignore[arg-type]
            out=folder,
        )
        trainer = Trainer(config)
        reports = list(trainer.run())
        # Laps that learned all the way, the first of them with warm-up and recording left out.
        laps = [
            (after.frames - before.frames, after.seconds - before.seconds, after.batch_wait)
            for before, after in itertools.pairwise(reports)
            if before.updates > 0
        ][1:]
        require(bool(laps), f"only {len(reports)} reports in {seconds} s")
        frames, lasted = sum(lap[0] for lap in laps), sum(lap[1] for lap in laps)
        require(all(np.isfinite(report.loss) for report in reports[-3:]), "the loss is not finite")
        agent = load_agent(reports[-1].folder, device="cpu")
        agent.act(np.zeros((STACK, *SHAPE), np.uint8))
    rate = frames / lasted
    return {
        "frames/s": rate,
        f"hours for {PROJECTED_FRAMES / 1e6:.0f}M frames": PROJECTED_FRAMES / rate / 3600,
        "updates/s": rate / config.frame_skip / config.train_period_steps,
        "share of learning spent waiting for batches": float(np.mean([lap[2] for lap in laps])),
    }


def check_profile(setting: Setting) -> dict[str, Any]:
    """Where the time of acting and learning goes: the first rows of the profiler's table."""
    from torch.profiler import ProfilerActivity, profile

    learner, means = make_learner(setting.device), MetricMeans(setting.device)
    staging = make_staging(make_memory(), setting.device, make_lane(setting.device))
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * setting.is_gpu

    def steps(count: int) -> None:
        for _ in range(count):
            with staging.batch() as batch:
                means.add(learner.update(*batch))
        means.read()

    steps(5)
    with profile(activities=activities) as profiler:
        steps(setting.size(50, 3))
    staging.close()
    order = "self_device_time_total" if setting.is_gpu else "self_cpu_time_total"
    table = profiler.key_averages().table(sort_by=order, row_limit=15, max_name_column_width=60)
    return {"table": table}


CHECKS = (
    Check("slots, copy stream busy", 20, partial(check_slots, "copying")),
    Check("slots, compute stream busy", 20, partial(check_slots, "computing")),
    Check("slots, control without a guard", 10, check_control, needs_gpu=True),
    Check("batches from the host", 20, partial(check_batches, False)),
    Check("batches from frames on the device", 20, partial(check_batches, True)),
    Check("CPU and device, float32", 40, partial(check_parity, torch.float32)),
    Check("CPU and device, bfloat16", 40, partial(check_parity, torch.bfloat16)),
    Check("graph and no graph, float32", 30, partial(check_graph, torch.float32)),
    Check("graph and no graph, bfloat16", 30, partial(check_graph, torch.bfloat16)),
    Check("flat reserved memory", 30, check_flat_memory, needs_gpu=True),
    Check("update rate", 30, check_update_rate),
    Check("run, 1 environment", 40, partial(check_run, 1, 0, "host")),
    Check("run, 16 environments, 8 workers", 40, partial(check_run, 16, 8, "host")),
    Check("run, 32 environments, 14 workers", 40, partial(check_run, 32, 14, "host")),
    Check("run, 32, 14, frames on the device", 40, partial(check_run, 32, 14, "cuda")),
    Check("profile", 30, check_profile),
)


# -- the report -----------------------------------------------------------------------------------


def run_check(check: Check, setting: Setting, left_seconds: float) -> Outcome:
    """One check, whatever comes of it."""
    name, budget = check.name, check.budget_seconds
    if left_seconds < budget / 2:
        return Outcome(name, False, 0.0, budget, f"not run: {left_seconds:.0f} s were left")
    faulthandler.dump_traceback_later(3 * budget + 1)  # where it hangs, if it does
    began = time.perf_counter()
    try:
        with exact_float32():
            figures = check.run(setting)
        passed, text = True, ""
    except Failed as failed:
        passed, text, figures = False, str(failed), {}
    except Exception:
        passed, text, figures = False, traceback.format_exc(), {}
    finally:
        faulthandler.cancel_dump_traceback_later()
    seconds = time.perf_counter() - began
    if passed and seconds > budget and not setting.small:
        passed, text = False, f"took {seconds:.0f} s of {budget:.0f}"
    return Outcome(name, passed, seconds, budget, text, figures)


def machine_facts(device: torch.device) -> dict[str, str]:
    facts = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "cuda": str(torch.version.cuda),
        "python": platform.python_version(),
        "command": " ".join(sys.argv),
    }
    return facts


def markdown(facts: dict[str, str], outcomes: list[Outcome], seconds: float) -> str:
    failed = [outcome.name for outcome in outcomes if not outcome.passed]
    lines = ["# GPU check", "", f"{len(outcomes) - len(failed)} of {len(outcomes)} passed, "
             f"{seconds:.0f} s.", ""]  # fmt: skip
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    lines += ["", "| check | | seconds | found |", "|---|---|---|---|"]
    for outcome in outcomes:
        figures = [
            f"{name} {value:,.4g}" if isinstance(value, float) else f"{name} {value}"
            for name, value in outcome.figures.items()
            if name != "table"
        ]
        found = "; ".join([*outcome.text.strip().splitlines()[-1:], *figures])
        verdict = "passed" if outcome.passed else "FAILED"
        lines.append(
            f"| {outcome.name} | {verdict} | {outcome.seconds:.1f} of {outcome.budget_seconds:.0f} "
            f"| {found} |"
        )
    for outcome in outcomes:
        detail = outcome.figures.get("table", "") or (outcome.text if not outcome.passed else "")
        if detail:
            lines += ["", f"## {outcome.name}", "", "```", detail.rstrip(), "```"]
    return "\n".join(lines) + "\n"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda", help="cuda, cuda:1 or cpu (default: cuda)")
    parser.add_argument("--dry-run", action="store_true", help="small, on a CPU: tests the script")
    parser.add_argument("--only", default="", help="run only checks whose name has this in it")
    parser.add_argument("--out", type=Path, default=Path("gpu_check"), help="folder of the report")
    arguments = parser.parse_args(argv)
    device = torch.device("cpu" if arguments.dry_run else arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        print("gpu_check: no CUDA device; --dry-run checks the script itself", file=sys.stderr)
        return 2
    setting = Setting(device, small=arguments.dry_run)
    arguments.out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    facts, outcomes = machine_facts(device), []
    for check in CHECKS:
        if arguments.only not in check.name or (check.needs_gpu and not setting.is_gpu):
            continue
        left = TOTAL_SECONDS - (time.perf_counter() - began)
        outcome = run_check(check, setting, left)
        outcomes.append(outcome)
        print(f"{'passed' if outcome.passed else 'FAILED'}  {outcome.name} "
              f"({outcome.seconds:.1f} s) {outcome.text}", flush=True)  # fmt: skip
        report = markdown(facts, outcomes, time.perf_counter() - began)
        (arguments.out / "gpu_check.md").write_text(report)
        whole = {"machine": facts, "checks": [dataclasses.asdict(each) for each in outcomes]}
        (arguments.out / "gpu_check.json").write_text(json.dumps(whole, indent=2))
    print((arguments.out / "gpu_check.md").read_text())
    return 0 if outcomes and all(outcome.passed for outcome in outcomes) else 1


if __name__ == "__main__":
    sys.exit(main())
