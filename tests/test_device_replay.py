"""Frames kept on the device: the same batches as from the host's memory, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from fake_lane import FakeLane

from fastdqn import trainer as trainer_module
from fastdqn.config import Config
from fastdqn.device_replay import DeviceRing, check_device_memory
from fastdqn.errors import UserError
from fastdqn.lanes import CpuLane, Lane
from fastdqn.replay import ReplayMemory
from fastdqn.staging import InlineGatherer, Staging
from fastdqn.trainer import Trainer

CPU = torch.device("cpu")
NUM_ENVS = 3
PARTS = ("states", "actions", "rewards", "discounts", "next_states")


class Run:
    """A memory that is played into, its ring, and the batches by way of the ring."""

    def __init__(self, lane: Lane, shape: tuple[int, ...], dtype: str, **settings: Any) -> None:
        self.memory = ReplayMemory(
            90, shape, dtype, num_envs=NUM_ENVS, seed=4, **{"stack": 4, **settings}
        )
        self.ring = DeviceRing(
            self.memory, lane, CPU, rows=NUM_ENVS, frame_shape=shape, dtype=dtype
        )
        self.staging = Staging(
            InlineGatherer(self.memory.sample_slots_into),
            lane,
            batch_size=20,
            stack=self.memory.stack,
            frame_shape=shape,
            dtype=dtype,
            ring=self.ring,
        )
        self.rng = np.random.default_rng(0)
        self.begin()

    def frames(self, count: int) -> np.ndarray[Any, Any]:
        shape = (count, *self.memory.frame_shape)
        return self.rng.integers(1, 256, shape).astype(self.memory.dtype)

    def begin(self, env_ids: np.ndarray[Any, Any] | None = None) -> None:
        frames = self.frames(NUM_ENVS if env_ids is None else len(env_ids))
        self.memory.begin(frames, env_ids)
        self.staging.stored(frames, env_ids)
        frames[:] = 0  # copied in

    def step(self) -> None:
        frames, ends = self.frames(NUM_ENVS), self.rng.random(NUM_ENVS) < 0.1
        rewards = self.rng.random(NUM_ENVS)
        no = np.zeros(NUM_ENVS, np.bool_)
        self.memory.append(np.arange(NUM_ENVS), rewards, frames, ends, no)
        self.staging.stored(frames)
        frames[:] = 0
        if ends.any():
            self.begin(np.flatnonzero(ends))


@pytest.mark.parametrize(
    "settings", [{}, {"n_step": 3, "padding": "repeat"}, {"stack": 1, "eviction": "random"}]
)
@pytest.mark.parametrize(
    ("shape", "dtype"), [((8, 8), "uint8"), ((5, 3), "uint8"), ((3,), "float32"), ((), "int64")]
)
def test_batches_are_those_of_the_memory(
    shape: tuple[int, ...], dtype: str, settings: dict[str, Any]
) -> None:
    run = Run(CpuLane(), shape, dtype, **settings)
    twin = Run(CpuLane(), shape, dtype, **settings)
    for _ in range(4):  # so that every window is complete
        run.step()
        twin.step()
    for _ in range(80):
        run.step()
        twin.step()
        run.staging.prefetch(3)
        for _ in range(3):
            expected = twin.memory.sample(20)
            with run.staging.batch() as batch:
                for name in PARTS:
                    np.testing.assert_array_equal(getattr(batch, name), getattr(expected, name))
    run.staging.close()


def test_batches_are_whole_on_a_device_that_lags() -> None:
    """Uploads and gathers are done in their order, and no place is written to too early."""
    lane = FakeLane()
    run, twin = Run(lane, (8, 8), "uint8"), Run(CpuLane(), (8, 8), "uint8")
    seen: list[Any] = []
    expected: list[Any] = []
    for _ in range(60):
        run.step()
        twin.step()
        expected.append(np.array(twin.memory.sample(20).next_states))
        with run.staging.batch() as batch:
            lane.put("compute", lambda part=batch.next_states: seen.append(part.numpy().copy()))
    lane.run_all()
    np.testing.assert_array_equal(seen, expected)


def test_a_ring_takes_over_what_a_memory_holds_already(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fastdqn.device_replay._CHUNK_BYTES", 64 * 7)  # several uploads
    run = Run(CpuLane(), (8, 8), "uint8")
    for _ in range(50):
        run.step()
    ring = DeviceRing(run.memory, CpuLane(), CPU, rows=1, frame_shape=(8, 8), dtype="uint8")
    assert torch.equal(ring._frames, run.ring._frames)


def test_frames_are_not_stored_under_batches_that_are_due() -> None:
    run = Run(CpuLane(), (8, 8), "uint8")
    run.step()
    run.staging.prefetch(1)
    with pytest.raises(RuntimeError, match="batches"):
        run.step()


def test_a_gpu_without_room_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = torch.device("cuda", 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (5 * 2**30, 8 * 2**30))
    check_device_memory(cuda, 400_000, 7_056)
    with pytest.raises(UserError) as refused:
        check_device_memory(cuda, 1_000_000, 7_056)
    assert str(refused.value) == (
        "replay_capacity=1000000: its frames take 7.06 GB and cuda:0 has 3.22 GB free for them; "
        "replay_capacity=456521 would fit, or replay_device='host'"
    )
    check_device_memory(cuda, 456_521, 7_056)
    with pytest.raises(UserError, match="give device='cuda'"):
        check_device_memory(CPU, 10, 7_056)


def test_a_cpu_run_that_asks_for_it_is_refused() -> None:
    with pytest.raises(UserError, match="the networks are on cpu"):
        Trainer(Config(game="Breakout", replay_device="cuda", device="cpu", out=None))


@pytest.mark.parametrize("num_envs", [1, 3])
def test_weights_are_those_of_a_run_with_frames_on_the_host(
    num_envs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def weights(replay_device: Any) -> list[torch.Tensor]:
        config = Config(
            game="Breakout",
            num_envs=num_envs,
            steps=150,
            learning_starts_steps=100,
            replay_capacity=60 * num_envs,
            batch_size=4,
            threads=1,
            device="cpu",
            replay_device=replay_device,
            out=None,
        )
        trainer = Trainer(config)
        list(trainer.run())
        assert trainer.counters.updates > 0
        return [weight.detach().clone() for weight in trainer.learner.online.parameters()]

    accept: Callable[..., None] = lambda *_: None  # noqa: E731
    monkeypatch.setattr(trainer_module, "check_device_memory", accept)
    pairs = zip(weights("host"), weights("cuda"), strict=True)
    assert all(torch.equal(host, device) for host, device in pairs)
