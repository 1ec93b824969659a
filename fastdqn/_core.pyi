"""C++ core of fastdqn: the classes that own replay state, and numpy views of them."""

import os
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import DTypeLike, NDArray
from typing_extensions import Never, Self

__version__: str

# What stands for one number a row: an array, or a sequence that numpy can make one of.
_Integers = NDArray[np.integer[Any]] | Sequence[int]
_Floats = NDArray[np.float32] | NDArray[np.float64] | Sequence[float]
_Flags = NDArray[np.bool_] | Sequence[bool]

# What pybind11 makes its classes with.
class _Published(type): ...

class Batch(metaclass=_Published):
    # Made by ReplayMemory alone.
    def __init__(self, *args: Never, **kwargs: Never) -> None: ...
    @property
    def states(self) -> NDArray[Any]: ...
    @property
    def next_states(self) -> NDArray[Any]: ...
    @property
    def actions(self) -> NDArray[np.int64]: ...
    @property
    def rewards(self) -> NDArray[np.float32]: ...
    @property
    def discounts(self) -> NDArray[np.float32]: ...
    @property
    def indices(self) -> NDArray[np.int64]: ...
    def __len__(self) -> int: ...

class ReplayMemory(metaclass=_Published):
    def __init__(
        self,
        capacity: int,
        frame_shape: Sequence[int] = (84, 84),
        dtype: DTypeLike = "uint8",
        *,
        num_envs: int = 1,
        stack: int = 4,
        n_step: int = 1,
        discount: float = 0.99,
        padding: Literal["zero", "repeat", "reject"] = "zero",
        reward_clip: Literal["sign", "clip", "none"] = "sign",
        eviction: Literal["fifo", "random"] = "fifo",
        storage: Literal["raw", "compressed"] = "raw",
        directory: str | os.PathLike[str] | None = None,
        seed: int = 0,
    ) -> None: ...
    def begin(self, frames: NDArray[Any], env_ids: _Integers | None = None) -> None: ...
    def append(
        self,
        actions: _Integers,
        rewards: _Floats,
        frames: NDArray[Any],
        terminated: _Flags,
        truncated: _Flags,
        env_ids: _Integers | None = None,
        *,
        life_lost: _Flags | None = None,
    ) -> None: ...
    def stacks(
        self, env_ids: _Integers | None = None, *, channels_last: bool = False
    ) -> NDArray[Any]: ...
    def stacks_into(self, out: NDArray[Any], env_ids: _Integers | None = None) -> None: ...
    def needs_padding(self, env_ids: _Integers | None = None) -> NDArray[np.bool_]: ...
    def sample(self, batch_size: int, *, channels_last: bool = False) -> Batch: ...
    def gather(self, indices: _Integers, *, channels_last: bool = False) -> Batch: ...
    def sample_into(
        self,
        states: NDArray[Any],
        next_states: NDArray[Any],
        actions: NDArray[np.int64],
        rewards: NDArray[np.float32],
        discounts: NDArray[np.float32],
        indices: NDArray[np.int64],
    ) -> None: ...
    def age_quantiles(self, fractions: Sequence[float]) -> NDArray[np.int64]: ...
    def sample_slots_into(
        self,
        state_slots: NDArray[np.int64],
        next_state_slots: NDArray[np.int64],
        actions: NDArray[np.int64],
        rewards: NDArray[np.float32],
        discounts: NDArray[np.float32],
        indices: NDArray[np.int64],
    ) -> None: ...
    def newest_slots(self, env_ids: _Integers | None = None) -> NDArray[np.int64]: ...
    def frames_into(self, out: NDArray[Any], slots: _Integers) -> None: ...
    def valid_indices(self) -> NDArray[np.int64]: ...
    def __len__(self) -> int: ...
    def check_invariants(self) -> None: ...
    def save(self, path: str | os.PathLike[str]) -> None: ...
    def save_in_chunks(
        self,
        path: str | os.PathLike[str],
        chunks: str | os.PathLike[str],
        previous: str | os.PathLike[str] | None = None,
        damaged: Sequence[str] = (),
    ) -> list[str]: ...
    @staticmethod
    def chunks_of(path: str | os.PathLike[str]) -> list[str]: ...
    @staticmethod
    def damaged_chunks(
        path: str | os.PathLike[str],
        chunks: str | os.PathLike[str],
        turn: int = 0,
        turns: int = 1,
    ) -> list[str]: ...
    @staticmethod
    def load(
        path: str | os.PathLike[str],
        chunks: str | os.PathLike[str] | None = None,
        *,
        storage: Literal["raw", "compressed"] | None = None,
        directory: str | os.PathLike[str] | None = None,
    ) -> ReplayMemory: ...
    def flush(self) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...
    @staticmethod
    def open(directory: str | os.PathLike[str]) -> ReplayMemory: ...
    @property
    def num_frames(self) -> int: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def nbytes_now(self) -> int: ...
    @property
    def frame_nbytes_mean(self) -> float: ...
    @property
    def capacity(self) -> int: ...
    @property
    def frame_shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> np.dtype[Any]: ...
    @property
    def num_envs(self) -> int: ...
    @property
    def stack(self) -> int: ...
    @property
    def n_step(self) -> int: ...
    @property
    def discount(self) -> float: ...
    @property
    def padding(self) -> Literal["zero", "repeat", "reject"]: ...
    @property
    def reward_clip(self) -> Literal["sign", "clip", "none"]: ...
    @property
    def eviction(self) -> Literal["fifo", "random"]: ...
    @property
    def storage(self) -> Literal["raw", "compressed"]: ...
    @property
    def directory(self) -> str | None: ...
    @property
    def seed(self) -> int: ...

class Prefetcher(metaclass=_Published):
    def __init__(self, memory: ReplayMemory, threads: int) -> None: ...
    def submit(
        self,
        states: NDArray[Any],
        next_states: NDArray[Any],
        actions: NDArray[np.int64],
        rewards: NDArray[np.float32],
        discounts: NDArray[np.float32],
        indices: NDArray[np.int64],
    ) -> None: ...
    def wait(self) -> None: ...
    def close(self) -> None: ...
    @property
    def outstanding(self) -> int: ...

class ThreadPool(metaclass=_Published):
    def __init__(self, threads: int) -> None: ...
    @property
    def threads(self) -> int: ...

class NatureNetwork(metaclass=_Published):
    def __init__(
        self,
        weights: Sequence[NDArray[np.float32]],
        *,
        height: int,
        width: int,
        first_padding: int,
        bfloat16: bool,
    ) -> None: ...
    @staticmethod
    def is_available(*, bfloat16: bool) -> bool: ...
    @property
    def few_rows(self) -> int: ...
    def refresh(self, pool: ThreadPool) -> None: ...
    def values_into(
        self, pool: ThreadPool, stacks: Sequence[NDArray[np.uint8]], out: NDArray[np.float32]
    ) -> None: ...
    def actions_into(
        self, pool: ThreadPool, stacks: Sequence[NDArray[np.uint8]], out: NDArray[np.int64]
    ) -> None: ...
    def forward_into(
        self,
        pool: ThreadPool,
        stacks: Sequence[NDArray[np.uint8]],
        learned: int,
        out: NDArray[np.float32],
    ) -> None: ...
    def backward_into(
        self,
        pool: ThreadPool,
        grad: NDArray[np.float32],
        gradients: Sequence[NDArray[np.float32]],
    ) -> None: ...

class AdamStep(metaclass=_Published):
    def __init__(
        self,
        weights: Sequence[NDArray[np.float32]],
        gradients: Sequence[NDArray[np.float32]],
        means: Sequence[NDArray[np.float32]],
        squares: Sequence[NDArray[np.float32]],
    ) -> None: ...
    @staticmethod
    def is_available() -> bool: ...
    def step(
        self,
        pool: ThreadPool,
        *,
        learning_rate: float,
        beta1: float,
        beta2: float,
        epsilon: float,
        step: float,
    ) -> None: ...

class NatureUpdate(metaclass=_Published):
    def __init__(
        self,
        pool: ThreadPool,
        online: NatureNetwork,
        target: NatureNetwork,
        batch: Sequence[NDArray[Any]],
        *,
        double: bool,
        huber: bool,
        mean: bool,
    ) -> None: ...
    def begin(self) -> None: ...
    def finish(
        self,
        gradients: Sequence[NDArray[np.float32]],
        adam: AdamStep,
        *,
        learning_rate: float,
        beta1: float,
        beta2: float,
        epsilon: float,
        step: float,
    ) -> tuple[float, float]: ...

def q_learning_into(
    q_tm1: NDArray[np.float32],
    a_tm1: NDArray[np.int64],
    r_t: NDArray[np.float32],
    discount_t: NDArray[np.float32],
    q_t_value: NDArray[np.float32],
    q_t_selector: NDArray[np.float32],
    grad: NDArray[np.float32],
    *,
    huber: bool,
    mean: bool,
) -> tuple[float, float]: ...
