"""The training run, from top to bottom.

`Trainer` puts the parts together and `Trainer.run` is the loop that drives them: act, learn while
the environments step, remember, report. What each part does stands in its own module; when updates
and target copies are due is `LearningSchedule`'s alone. One seed determines all of it: what is
computed side by side, and which weights are acted by, depends on the steps and not on the time.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fastdqn.actor import Actor, GreedyPolicy
from fastdqn.agent import Agent
from fastdqn.budget import check_fits, needs_of, with_sized_replay
from fastdqn.checkpoint import load_agent
from fastdqn.config import Config
from fastdqn.device_replay import DeviceRing, check_device_memory
from fastdqn.envs.make import EnvFunction, make_envs
from fastdqn.envs.vector import StateNotSaved
from fastdqn.errors import UserError
from fastdqn.evaluator import make_evaluator
from fastdqn.graphs import replayed
from fastdqn.lanes import Lane, make_lane
from fastdqn.learner import Learner, MetricMeans, StartedUpdate
from fastdqn.machine import choose_device, exact_float32, resident_bytes
from fastdqn.metrics import Counters, EpisodeTracker, Report
from fastdqn.networks import build_network, empty_stacks
from fastdqn.optimizers import make_optimizer
from fastdqn.processor import choose_dtype, choose_threads
from fastdqn.replay import ReplayMemory
from fastdqn.run_folder import Resumed, make_output
from fastdqn.schedules import Due, LearningSchedule, LinearSchedule
from fastdqn.staging import Gatherer, InlineGatherer, Staging, make_gatherer

__all__ = ["Budget", "Trainer", "train"]


def train(
    config: Config,
    *,
    env_fn: EnvFunction | None = None,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Report]:
    """Train, yielding a report every `log_period_steps` steps and at the end.

    `env_fn` makes the environments in place of the config's `game` or `env`. `stop` is asked after
    every step; True ends the run as its budget would. However the run ends, also by leaving the
    loop, its model and logs are saved in `report.folder`.

    Raises `UserError` before the first step for what cannot be done.
    """
    return Trainer(config, env_fn=env_fn).run(stop)


class Trainer:
    """One training run and its parts. Raises `UserError` where the run cannot be made."""

    def __init__(
        self,
        config: Config,
        *,
        env_fn: EnvFunction | None = None,
        resumed: Resumed | None = None,
    ) -> None:
        self.config = config = config.resolved()
        self.notes: list[str] = []
        """What a user should be told of a resumed run."""
        self.device = choose_device(config.device)
        env_seed, memory_seed, action_seed, weight_seed = (
            int(seed) for seed in np.random.SeedSequence(config.seed).generate_state(4)
        )

        self.envs = make_envs(
            env_fn or config.env,
            config.game,
            config.num_envs,
            seed=env_seed,
            workers=config.workers,
            **config.env_options(),
        )
        functions = {"env_fn": env_fn, "epsilon": config.epsilon}
        self._functions = [name for name, function in functions.items() if function is not None]
        shape, dtype = self.envs.frame_shape, self.envs.dtype
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(weight_seed)
            network = build_network(shape, self.envs.num_actions, **config.network_options())
        network.to(self.device)
        self.learner = Learner(
            network,
            make_optimizer(
                config.optimizer,
                network.parameters(),
                learning_rate=config.learning_rate,
                epsilon=config.optimizer_epsilon,
                decay=config.rmsprop_decay,
            ),
            num_actions=self.envs.num_actions,
            double=config.double,
            loss=config.loss,
            loss_reduction=config.loss_reduction,
            max_grad_norm=config.max_grad_norm,
            target_tau=config.target_tau,
            dtype=choose_dtype(config.precision, self.device, images=len(shape) == 2),
        )
        needs = needs_of(
            config,
            frame_shape=shape,
            dtype=dtype,
            game=str(self.envs.protocol()["game"]) if config.game is not None else None,
            network_bytes=self.learner.nbytes,
            on_host=self.device.type == "cpu",
            written=0 if resumed is None else resumed.checkpoints_nbytes,
        )
        self.config = config = with_sized_replay(config, needs)
        check_fits(config, needs)
        self._replay_bytes = config.replay_capacity * needs.stored_frame
        self.memory = self._make_memory(memory_seed, resumed)

        lane = make_lane(self.device)
        ring = self._make_ring(lane) if config.replay_device == "cuda" else None
        gatherer: Gatherer = (
            make_gatherer(self.memory, config.prefetch_threads)
            if ring is None
            else InlineGatherer(self.memory.sample_slots_into)
        )
        self.staging = Staging(
            gatherer,
            lane,
            batch_size=config.batch_size,
            stack=config.stack,
            frame_shape=shape,
            dtype=dtype,
            ring=ring,
        )
        self._epsilon = _epsilon_schedule(config)
        self._exploration = np.random.default_rng(action_seed)
        stacks = empty_stacks(config.num_envs, config.stack, shape, dtype, pinned=lane.pinned)
        self.actor = Actor(
            self.learner.core_policy(stacks)
            or GreedyPolicy(
                self.learner.values,
                stacks,
                make_lane(self.device),
                partial(replayed, device=self.device),
            ),
            self.memory,
            stacks,
            num_actions=self.envs.num_actions,
            epsilon=self._epsilon,
            reject_padding=config.padding == "reject",
            generator=self._exploration,
        )
        self.schedule = LearningSchedule(
            starts=config.resolved_learning_starts_steps,
            train_period=config.train_period_steps,
            target_period=config.target_period_steps if config.target_tau is None else None,
        )

        self.counters = Counters()
        self.budget = Budget(config)
        self.protocol = self._describe()
        self._evaluator = make_evaluator(config, self.envs, env_fn)
        self._games = EpisodeTracker(config.num_envs)
        self._means = MetricMeans(self.device)
        self._update = replayed(self._update_on, self.device)
        self._clock = _Clock()
        self._reported = Counters()
        self._lapped = Counters()  # in this process, since when speeds are counted
        self._due: tuple[Due, ...] = ()
        self._under_way: _UnderWay | None = None
        self._to_go_on_with: tuple[tuple[Due, ...], list[Tensor]] | None = None
        self._begun = False
        self._between_steps = False
        self._looked_back = False  # on the steps so far, with a report and so on
        if resumed is not None:
            with resumed.checkpoint.understood():
                self._load_state(resumed.state)
            if self.budget.is_spent(self.counters, 0):
                raise UserError(
                    f"{resumed.checkpoint.run}: the run has come to its end at step "
                    f"{self.counters.steps:,}; give more steps, frames or episodes to go on"
                )
        elif config.init_from is not None:
            self._load_weights(config.init_from)
        self._checkpoints = CheckpointSchedule(config, self.counters.steps)
        self.output = make_output(config, self.protocol, resumed)
        self._learning_seconds = self._waited_seconds = 0.0  # since the last report

    def _make_memory(self, seed: int, resumed: Resumed | None) -> ReplayMemory:
        """A new replay memory, or the resumed run's, which must have these settings."""
        config = self.config
        settings: dict[str, Any] = {
            "capacity": config.replay_capacity,
            "frame_shape": self.envs.frame_shape,
            "dtype": self.envs.dtype,
            "num_envs": config.num_envs,
            "stack": config.stack,
            "n_step": config.n_step,
            "discount": config.discount,
            "padding": config.padding,
            "reward_clip": "none",  # the environment has applied the rule, life losses included
            "eviction": config.replay_eviction,
            "storage": config.resolved_replay_storage,
            "directory": config.replay_dir,
            "seed": seed,
        }
        try:
            if resumed is None:
                return ReplayMemory(**settings)
            return resumed.checkpoint.load_memory(settings)
        except OSError as error:
            raise UserError(f"replay_dir: {error.strerror}") from None

    def _make_ring(self, lane: Lane) -> DeviceRing:
        """The frames beside the networks, if there is room."""
        shape, dtype = self.envs.frame_shape, self.envs.dtype
        check_device_memory(self.device, self.memory.capacity, math.prod(shape) * dtype.itemsize)
        return DeviceRing(
            self.memory,
            lane,
            self.device,
            rows=self.config.num_envs,
            frame_shape=shape,
            dtype=dtype,
        )

    def run(self, stop: Callable[[], bool] = lambda: False) -> Iterator[Report]:
        """The training loop. See `train`."""
        config, counters, memory, envs = self.config, self.counters, self.memory, self.envs
        self._clock = _Clock(self._clock.total)
        threads = torch.get_num_threads()
        torch.set_num_threads(config.threads or choose_threads())
        numbers = ExitStack()
        numbers.enter_context(exact_float32())
        try:
            if self._to_go_on_with is not None:
                due, batch = self._to_go_on_with
                self._to_go_on_with = None
                self._under_way = _UnderWay(due, self.learner.begin_update(batch), ExitStack())
            if not self._begun:
                self._begin(envs.reset())
                self._begun = True
            if counters.steps == 0:
                self._evaluator.begin(self._copy_on_cpu, 0, 0, baseline=True)
            self._between_steps = True
            while not (self._is_spent() or stop()):
                # Report on the steps so far; the updates that the last ones made due are to come. A
                # resumed run may have done so before it was stopped.
                if not self._looked_back:
                    if self._crossed(config.log_period_steps) and counters != self._reported:
                        yield self._report()
                    if self._crossed(config.save_period_steps):
                        self.output.save(self.agent(), counters)
                    self._evaluate_if_due()
                    self._looked_back = True
                if self._checkpoints.is_due(counters.steps):
                    self._checkpoint()
                self._between_steps = self._looked_back = False

                # Begin to gather the batches that are due: the threads do it while this one acts.
                self._prefetch()

                # Act: every environment is told its action...
                before = counters.steps
                envs.send(self.actor.act(before))

                # ... and learn, while they step: whatever the steps before made due. That order
                # holds where nothing runs side by side too, so that the weights are the same. On a
                # GPU it only queues work, which is done while the environments step in here; in the
                # core the last update is only begun, and finished when more is due.
                self._learn()
                result = envs.receive()
                counters.steps += config.num_envs
                counters.frames += int(result.frames_used.sum())

                # Remember: final frames too; then the first frames of new games.
                memory.append(
                    result.actions,
                    result.learning_rewards,
                    result.frames,
                    result.terminated,
                    result.truncated,
                    life_lost=result.life_lost,
                )
                self.staging.stored(result.frames)
                ended = self._games.step(result, counters)
                if ended.size:
                    self._begin(envs.reset(ended), ended)
                self._due = tuple(self.schedule.due(before, counters.steps))
                if self._due:
                    self._finish_learning()
                self._between_steps = True
            # What follows belongs to the end of a run: one that goes on from here does it in turn.
            self._checkpoint()
            self.output.wait()
            self._between_steps = False
            goes_on = self.can_be_resumed and not self.budget.is_spent(counters, 0)
            if not goes_on:
                self._evaluate_if_due()
            self._finish_learning()
            self._prefetch()
            self._learn()
            self._finish_learning()
            if self._evaluator.is_busy and not goes_on:
                # Whoever does not want to wait for it can end the process: the model is there.
                self.output.save(self.agent(), counters)
                self._evaluator.wait()
            if counters != self._reported or self._evaluator.has_finished:
                yield self._report()
        finally:
            self._close()
            numbers.close()
            torch.set_num_threads(threads)

    def _begin(self, frames: NDArray[Any], env_ids: NDArray[np.int64] | None = None) -> None:
        """Remember first frames of new games."""
        self.memory.begin(frames, env_ids)
        self.staging.stored(frames, env_ids)

    def _prefetch(self) -> None:
        """Draw the batches of the updates that are due, from what the memory holds now."""
        updates = self._due.count(Due.UPDATE)
        if updates:
            self._check_drawable()
            self.staging.prefetch(updates)

    def _learn(self) -> None:
        """Do what is due, or begin. Updates draw from what the memory held when they became due.

        Where the learner computes beside its caller, what comes from the last update on is put off
        until more is due: environments are acted in by the weights of before. When that is depends
        on the steps alone.
        """
        if not self._due:
            return
        with self._learning():
            due, self._due = self._due, ()
            updates = due.count(Due.UPDATE)
            for number, each in enumerate(due):
                if each is Due.TARGET_COPY:
                    self._copy_target()
                    continue
                updates -= 1
                slot = ExitStack()
                batch = slot.enter_context(self.staging.batch())
                if updates == 0 and self.learner.overlaps:
                    self._under_way = _UnderWay(
                        due[number:], self.learner.begin_update(batch), slot
                    )
                    break
                with slot:
                    self._update(*batch)
                self.counters.updates += 1

    def _finish_learning(self) -> None:
        """Do what was put off."""
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            return
        with self._learning():
            with under_way.slot:
                self._means.add(under_way.update.finish())
            self.counters.updates += 1
            for _ in under_way.due[1:]:
                self._copy_target()

    @contextmanager
    def _learning(self) -> Iterator[None]:
        """Take the time."""
        began, waited = time.perf_counter(), self.staging.wait_seconds
        yield
        self._learning_seconds += time.perf_counter() - began
        self._waited_seconds += self.staging.wait_seconds - waited

    def _copy_target(self) -> None:
        self.learner.copy_target()
        self.counters.target_copies += 1

    def _evaluate_if_due(self) -> None:
        period = self.config.evaluation_period_steps
        if period is not None and self._crossed(period):
            counters = self.counters
            self._evaluator.begin(self._copy_on_cpu, counters.steps, counters.frames)

    def _copy_on_cpu(self) -> Agent:
        return self.agent(torch.device("cpu"))

    def _update_on(self, *batch: Tensor) -> None:
        """One update, on a GPU recorded once for each of staging's slots."""
        self._means.add(self.learner.update(*batch))

    def _is_spent(self) -> bool:
        """Whether the run is at its end, with the time that a last checkpoint may take: for one on
        its way, one that is due, the last, each as long as the longest before, and some more."""
        seconds = self._clock.seconds + 3.5 * self.output.longest_checkpoint_seconds
        return self.budget.is_spent(self.counters, seconds)

    @property
    def can_be_resumed(self) -> bool:
        """Whether the run has a checkpoint, or will have one when it ends."""
        return self._checkpoints.enabled and self.output.path is not None

    def _checkpoint(self) -> None:
        """Save all that the run needs to go on from here, between two steps."""
        if self._checkpoints.enabled and self._checkpoints.last_steps != self.counters.steps:
            with self._checkpoints.making(self.counters.steps):
                self.output.checkpoint(
                    self.counters.steps, self.config, self._save_state(), self.memory
                )

    def _save_state(self) -> dict[str, Any]:
        """All but the replay memory, as JSON, bytes and arrays."""
        try:
            environments = self.envs.save_state()
        except StateNotSaved as error:
            environments = {"not_saved": str(error)}
        return {
            "counters": dataclasses.asdict(self.counters),
            "reported": dataclasses.asdict(self._reported),
            "looked_back": self._looked_back,
            "evaluations": self._evaluator.save_state(),
            "due": [due.name for due in self._due],
            "under_way": None if self._under_way is None else self._under_way.save_state(),
            "exploration": self._exploration.bit_generator.state,
            "games": self._games.save_state(),
            "means": self._means.save_state(),
            "seconds": self._clock.total,
            "learner": self.learner.save_state(),
            "environments": environments,
            "functions": self._functions,
        }

    def _load_state(self, state: Mapping[str, Any]) -> None:
        """Go on from such a state, with the replay memory that was saved with it."""
        for counters, saved in (
            (self.counters, state["counters"]),
            (self._reported, state["reported"]),
            (self._lapped, state["counters"]),
        ):
            for name, value in saved.items():
                setattr(counters, name, value)
        self._looked_back = state["looked_back"]
        self._evaluator.load_state(state["evaluations"])
        self._due = tuple(Due[name] for name in state["due"])
        if (under_way := state.get("under_way")) is not None:
            parts = under_way["batch"]
            batch = [torch.from_numpy(np.array(part)).to(self.device) for part in parts]
            self._to_go_on_with = tuple(Due[name] for name in under_way["due"]), batch
        self._exploration.bit_generator.state = state["exploration"]
        self._means.load_state(state["means"])
        self._clock = _Clock(state["seconds"])
        self.learner.load_state(state["learner"])
        environments = state["environments"]
        self._begun = "not_saved" not in environments
        if self._begun:
            self.envs.load_state(environments)
        else:
            self.notes.append(
                f"every environment begins a new episode: {environments['not_saved']}"
            )
        self._games.load_state(state["games"], open_games=self._begun)

    def _load_weights(self, path: str) -> None:
        """Start with the weights of another run's model, and with nothing else of it."""
        network = load_agent(path, "cpu").network
        try:
            self.learner.load_weights(network.state_dict())
        except ValueError as error:
            raise UserError(
                f"init_from={path!r}: its network is not the one of these settings: {error}"
            ) from None

    def _crossed(self, period: int) -> bool:
        """Whether the last steps of all environments reached or passed a multiple of `period`."""
        steps = self.counters.steps
        return steps > 0 and steps // period > (steps - self.config.num_envs) // period

    def _check_drawable(self) -> None:
        """Say why where learning is due and nothing can be drawn, as with games too short."""
        if len(self.memory) == 0:
            try:
                self.memory.sample(1)
            except ValueError as error:
                raise UserError(
                    f"learning is due at step {self.counters.steps}, but {error}"
                ) from None

    def agent(self, device: torch.device | None = None) -> Agent:
        """A copy of what has been learned so far, on `device` (None: the run's own)."""
        return Agent(
            copy.deepcopy(self.learner.online),
            self.config,
            frame_shape=self.envs.frame_shape,
            dtype=self.envs.dtype.name,
            num_actions=self.envs.num_actions,
            protocol=self.protocol,
            device=device or self.device,
        )

    def _report(self) -> Report:
        """Log and return the state of the run. The one place that waits for a GPU's results."""
        counters, last = self.counters, self._lapped
        loss, mean_q = self._means.read()
        seconds, interval = self._clock.lap()
        learning, waited = self._learning_seconds, self._waited_seconds
        self._learning_seconds = self._waited_seconds = 0.0
        stored, capacity = self.memory.num_frames, self.memory.capacity
        frame_bytes = self.memory.frame_nbytes_mean
        to_come = round(frame_bytes * (capacity - stored))
        median_age, oldest_age = self.memory.age_quantiles([0.5, 1.0]).tolist()
        report = Report(
            **dataclasses.asdict(counters),
            epsilon=self._epsilon(counters.steps),
            mean_score=self._games.mean_score,
            loss=loss,
            mean_q=mean_q,
            seconds=self._clock.total,
            frames_per_second=(counters.frames - last.frames) / interval,
            updates_per_second=(counters.updates - last.updates) / interval,
            batch_wait=waited / learning if learning else math.nan,
            resident_bytes=resident_bytes(),
            replay_bytes=self.memory.nbytes_now,
            replay_full_bytes=self.memory.nbytes_now + to_come,
            replay_frame_bytes=frame_bytes,
            replay_median_age=median_age,
            replay_oldest_age=oldest_age,
            fraction=self.budget.fraction(counters, seconds),
            finished=self._games.take_finished(),
            evaluations=self._evaluator.take_finished(),
            folder=self.output.path,
        )
        self._reported = dataclasses.replace(counters)
        self._lapped = dataclasses.replace(counters)
        self.output.write(report)
        return report

    def _describe(self) -> dict[str, Any]:
        """What is played, on what, and how large: printed and saved with the run."""
        return {
            **self.envs.protocol(),
            "preset": self.config.preset_name,
            "device": str(self.device),
            "threads": self.config.threads or choose_threads(),
            "precision": str(self.learner.dtype).removeprefix("torch."),
            "parameters": sum(weight.numel() for weight in self.learner.online.parameters()),
            "replay_bytes": self._replay_bytes,
        }

    def _close(self) -> None:
        """Save what there is and let go of everything, each of them whatever the others meet."""
        with ExitStack() as last_to_first:
            last_to_first.callback(self.envs.close)
            last_to_first.callback(self.output.close)
            last_to_first.callback(self._evaluator.close)
            if self.config.replay_dir is not None:  # a script may want it whole
                last_to_first.callback(self.memory.close)
            last_to_first.callback(self.staging.close)
            last_to_first.callback(self._let_go)
            if self.counters != self._reported:
                last_to_first.callback(self._report)
            if self._between_steps:
                last_to_first.callback(self._checkpoint)
            # First of all the model: a full disk may have room for it and for no further log.
            last_to_first.callback(lambda: self.output.save(self.agent(), self.counters))

    def _let_go(self) -> None:
        """Forget an update that is under way, when nothing computes it any more."""
        self._under_way = None


class _UnderWay(NamedTuple):
    """An update that has been begun, and what is due with it and after it."""

    due: tuple[Due, ...]
    update: StartedUpdate
    slot: ExitStack
    """Holds the batch's memory."""

    def save_state(self) -> dict[str, Any]:
        """The batch: the memory may have lost it by now. No weight has changed yet."""
        return {
            "due": [due.name for due in self.due],
            "batch": [part.cpu().numpy().copy() for part in self.update.batch],
        }


class Budget:
    """How much of a run is done, by whichever of its ends is nearest."""

    def __init__(self, config: Config) -> None:
        self._steps = config.steps or math.inf
        self._frames = config.frames or math.inf
        self._episodes = config.episodes or math.inf
        self._seconds = (config.hours or math.inf) * 3600

    def fraction(self, counters: Counters, seconds: float) -> float:
        """From 0 at the start to 1 at the end."""
        done = max(
            counters.steps / self._steps,
            counters.frames / self._frames,
            counters.episodes / self._episodes,
            seconds / self._seconds,
        )
        return min(done, 1.0)

    def is_spent(self, counters: Counters, seconds: float) -> bool:
        """Whether the run is at its end."""
        return self.fraction(counters, seconds) >= 1


class CheckpointSchedule:
    """When checkpoints are due."""

    def __init__(self, config: Config, steps: int) -> None:
        minutes, self._period_steps = (
            config.checkpoint_period_minutes,
            config.checkpoint_period_steps,
        )
        self.enabled = minutes is not None or self._period_steps is not None
        self._period_seconds = math.inf if minutes is None else minutes * 60
        self._last = time.monotonic()
        self.last_steps = steps
        """The steps of the last one."""

    def is_due(self, steps: int) -> bool:
        """Whether a period has passed at one of the steps since the last one."""
        if steps == self.last_steps:
            return False
        period = self._period_steps
        if period is not None and steps // period > self.last_steps // period:
            return True
        return time.monotonic() - self._last >= self._period_seconds

    @contextmanager
    def making(self, steps: int) -> Iterator[None]:
        """Make a checkpoint inside the `with`."""
        try:
            yield
        except BaseException:
            self.enabled = False  # the run ends of it: not once more then
            raise
        self._last = time.monotonic()
        self.last_steps = steps


class _Clock:
    """Time since training began in this process, and since the last lap; `before` are the seconds
    of the processes that the run was resumed from."""

    def __init__(self, before: float = 0.0) -> None:
        self._start = self._lap = time.monotonic()
        self._before = before

    @property
    def total(self) -> float:
        """Seconds of training over all processes."""
        return self._before + self.seconds

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._start

    def lap(self) -> tuple[float, float]:
        """Seconds since the start, and since the last call (never 0)."""
        now = time.monotonic()
        interval, self._lap = max(now - self._lap, 1e-9), now
        return now - self._start, interval


def _epsilon_schedule(config: Config) -> Callable[[int], float]:
    if config.epsilon is not None:
        return _checked(config.epsilon)
    waits = config.epsilon_decay_from == "learning_starts"
    return LinearSchedule(
        config.epsilon_start,
        config.epsilon_end,
        config.epsilon_decay_steps,
        begin_step=config.resolved_learning_starts_steps if waits else 0,
    )


def _checked(epsilon: Callable[[int], float]) -> Callable[[int], float]:
    """A script's schedule, refused where it gives no probability."""

    def checked(step: int) -> float:
        value = float(epsilon(step))
        if not 0 <= value <= 1:
            raise UserError(f"epsilon({step})={value}: expected a number from 0 to 1")
        return value

    return checked
