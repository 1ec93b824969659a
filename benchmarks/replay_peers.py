"""Other systems' replay memories behind one small interface, set up for Atari as each advises.

All are given the same transitions as stacks of 4 frames, which an environment's frame stacking
would hand them, and are asked for the same batches. What each keeps of a stack, and what it gives
back of it, is its own affair; what it does not promise is not asked of it. Nothing here is imported
before it is used: a system that is not installed is an ImportError of its own.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
import tracemalloc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

__all__ = ["PEERS", "Peer", "PeerBatch", "PeerMemory", "scratch_folder"]

Stack = npt.NDArray[np.uint8]
SHAPE = (4, 84, 84)


@dataclass(frozen=True)
class PeerBatch:
    """A batch as numpy arrays."""

    states: Stack  # [B, 4, 84, 84]
    actions: npt.NDArray[Any]  # [B]
    rewards: npt.NDArray[Any]  # [B]
    terminated: npt.NDArray[np.bool_]  # [B]
    next_states: Stack  # [B, 4, 84, 84]


class PeerMemory(Protocol):
    """One system's memory of a given capacity in transitions."""

    def prepare(self, stack: Stack) -> Any:
        """A stack [4, 84, 84] in the layout that this system's environments give; not timed."""

    def add(
        self, state: Any, action: int, reward: float, next_state: Any, ends: bool, cut: bool
    ) -> None:
        """Stores a transition; `ends`: the game is over, `cut`: a limit ended the episode."""

    def sample(self, size: int) -> Any:
        """What an update of this system asks for."""

    def arrays(self, batch: Any) -> PeerBatch:
        """The same as numpy arrays, to be compared."""

    def nbytes(self) -> int:
        """Of all that is stored."""


@dataclass(frozen=True)
class Peer:
    """A system, or one of its settings."""

    name: str
    package: str
    make: Callable[[int], PeerMemory]
    stack_bytes: float
    """About what a transition takes, in stacks of 28,224 bytes."""
    repeats_first: bool = False
    """Frames before an episode's first are that frame again, where others have zeros."""
    next_at_ends: bool = True
    """Whether the next state is right where the episode ended; where not, it is not compared."""
    whole_at_head: bool = True
    """Whether no stack is drawn whose older frames are overwritten; where not, none of those is
    compared."""
    caveat: str = ""
    """What is not compared, for the reader."""


def scratch_folder(nbytes: int) -> tempfile.TemporaryDirectory[str]:
    """A folder for files of so many bytes: in memory where there is room, so that no disk is
    measured."""
    shared = Path("/dev/shm")
    roomy = shared.is_dir() and shutil.disk_usage(shared).free > 1.2 * nbytes
    return tempfile.TemporaryDirectory(dir=shared if roomy else None)


class StableBaselines3:
    """Both settings of `optimize_memory_usage`: each next stack stored too, or taken from the next
    row, which refuses to tell time limits from ends."""

    def __init__(self, capacity: int, optimize: bool) -> None:
        from gymnasium import spaces
        from stable_baselines3.common.buffers import ReplayBuffer

        self.buffer = ReplayBuffer(
            capacity,
            spaces.Box(0, 255, SHAPE, np.uint8),
            spaces.Discrete(4),
            device="cpu",
            optimize_memory_usage=optimize,
            handle_timeout_termination=not optimize,
        )

    def prepare(self, stack: Stack) -> Any:
        return stack[None]

    def add(
        self, state: Any, action: int, reward: float, next_state: Any, ends: bool, cut: bool
    ) -> None:
        infos = [{"TimeLimit.truncated": cut and not ends}]
        done = np.array([ends or cut])
        self.buffer.add(state, next_state, np.array([action]), np.array([reward]), done, infos)

    def sample(self, size: int) -> Any:
        return self.buffer.sample(size)

    def arrays(self, batch: Any) -> PeerBatch:
        return PeerBatch(
            batch.observations.numpy(),
            batch.actions.numpy()[:, 0],
            batch.rewards.numpy()[:, 0],
            batch.dones.numpy()[:, 0] > 0,
            batch.next_observations.numpy(),
        )

    def nbytes(self) -> int:
        parts = vars(self.buffer).values()
        return sum(part.nbytes for part in parts if isinstance(part, np.ndarray))


class Tianshou:
    """As its Atari example: only the newest frame of each stack is stored, and no next state."""

    def __init__(self, capacity: int) -> None:
        from tianshou.data import Batch, ReplayBuffer

        self.batch_type = Batch
        self.buffer = ReplayBuffer(
            capacity, stack_num=4, ignore_obs_next=True, save_only_last_obs=True
        )

    def prepare(self, stack: Stack) -> Any:
        return stack

    def add(
        self, state: Any, action: int, reward: float, next_state: Any, ends: bool, cut: bool
    ) -> None:
        self.buffer.add(
            self.batch_type(
                obs=state,
                act=action,
                rew=reward,
                terminated=ends,
                truncated=cut,
                obs_next=next_state,
                info={},
            )
        )

    def sample(self, size: int) -> Any:
        return self.buffer.sample(size)[0]

    def arrays(self, batch: Any) -> PeerBatch:
        return PeerBatch(batch.obs, batch.act, batch.rew, batch.terminated, batch.obs_next)

    def nbytes(self) -> int:
        names = ("obs", "act", "rew", "terminated", "truncated", "done")
        return sum(getattr(self.buffer, name).nbytes for name in names)


class TorchRL:
    """Its tensordict buffer, each stack and next stack stored, in memory or in mapped files."""

    def __init__(self, capacity: int, mapped: bool) -> None:
        import torch
        from tensordict import TensorDict
        from torchrl.data import LazyMemmapStorage, LazyTensorStorage, TensorDictReplayBuffer

        logging.getLogger("torchrl").setLevel(logging.WARNING)
        self.tensor, self.dict = torch.as_tensor, TensorDict
        if mapped:
            self.folder = scratch_folder(2 * 28_224 * capacity)
            storage = LazyMemmapStorage(capacity, scratch_dir=self.folder.name)
        else:
            storage = LazyTensorStorage(capacity)
        self.buffer = TensorDictReplayBuffer(storage=storage, batch_size=32)

    def prepare(self, stack: Stack) -> Any:
        return self.tensor(stack.copy())

    def add(
        self, state: Any, action: int, reward: float, next_state: Any, ends: bool, cut: bool
    ) -> None:
        tensor, pack = self.tensor, self.dict
        after = {
            "pixels": next_state,
            "reward": tensor([reward]),
            "terminated": tensor([ends]),
            "done": tensor([ends or cut]),
        }
        self.buffer.add(
            pack({"pixels": state, "action": tensor(action), "next": pack(after, [])}, [])
        )

    def sample(self, size: int) -> Any:
        return self.buffer.sample(size)

    def arrays(self, batch: Any) -> PeerBatch:
        return PeerBatch(
            batch["pixels"].numpy(),
            batch["action"].numpy(),
            batch["next", "reward"].numpy()[:, 0],
            batch["next", "terminated"].numpy()[:, 0],
            batch["next", "pixels"].numpy(),
        )

    def nbytes(self) -> int:
        return int(self.buffer[:].bytes())


class Cpprb:
    """With both of its compressions: next states by reference, stacks by their newest frame."""

    def __init__(self, capacity: int) -> None:
        from cpprb import ReplayBuffer

        started = not tracemalloc.is_tracing()
        if started:
            tracemalloc.start()  # numpy reports its memory there; the buffer shows none of it
        before = tracemalloc.get_traced_memory()[0]
        self.buffer = ReplayBuffer(
            capacity,
            {
                "obs": {"shape": (84, 84, 4), "dtype": np.uint8},
                "act": {"dtype": np.int64},
                "rew": {},
                "done": {},
            },
            next_of="obs",
            stack_compress="obs",
        )
        self.bytes = tracemalloc.get_traced_memory()[0] - before
        if started:
            tracemalloc.stop()

    def prepare(self, stack: Stack) -> Any:
        return np.ascontiguousarray(np.moveaxis(stack, 0, -1))

    def add(
        self, state: Any, action: int, reward: float, next_state: Any, ends: bool, cut: bool
    ) -> None:
        self.buffer.add(obs=state, act=action, rew=reward, next_obs=next_state, done=ends)
        if ends or cut:
            self.buffer.on_episode_end()

    def sample(self, size: int) -> Any:
        return self.buffer.sample(size)

    def arrays(self, batch: Any) -> PeerBatch:
        return PeerBatch(
            np.moveaxis(batch["obs"], -1, 1),
            batch["act"][:, 0],
            batch["rew"][:, 0],
            batch["done"][:, 0] > 0,
            np.moveaxis(batch["next_obs"], -1, 1),
        )

    def nbytes(self) -> int:
        return self.bytes


PEERS: Sequence[Peer] = (
    Peer(
        "Stable-Baselines3, optimize_memory_usage",
        "stable-baselines3",
        lambda capacity: StableBaselines3(capacity, True),
        stack_bytes=1,
        next_at_ends=False,
        caveat="where an episode ended, its next state is the next episode's first",
    ),
    Peer(
        "Stable-Baselines3",
        "stable-baselines3",
        lambda capacity: StableBaselines3(capacity, False),
        stack_bytes=2,
    ),
    Peer(
        "Tianshou, save_only_last_obs",
        "tianshou",
        Tianshou,
        stack_bytes=0.25,
        repeats_first=True,
        next_at_ends=False,
        whole_at_head=False,
        caveat="where an episode ended, its next state is the same state; of the oldest three "
        "stacks, frames that are overwritten are replaced by later ones",
    ),
    Peer("cpprb, stack_compress and next_of", "cpprb", Cpprb, stack_bytes=0.25),
    Peer(
        "TorchRL, LazyTensorStorage",
        "torchrl",
        lambda capacity: TorchRL(capacity, False),
        stack_bytes=2,
    ),
    Peer(
        "TorchRL, LazyMemmapStorage",
        "torchrl",
        lambda capacity: TorchRL(capacity, True),
        stack_bytes=2,
    ),
)
