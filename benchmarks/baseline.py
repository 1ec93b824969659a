"""Double DQN in plain numpy, gymnasium and PyTorch, as well as that can be written.

This is what fastdqn is compared with: the same algorithm and the same rules of validity, each
stored frame kept once, every loop over a batch in numpy. It imports nothing of fastdqn, so it also
serves as the reference for answers. It plays one Atari game in one environment, and refuses
nothing: it is not for use.
"""

from __future__ import annotations

from typing import Any

import ale_py
import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from gymnasium.wrappers import AtariPreprocessing
from torch import Tensor, nn
from torch.nn import functional as F

__all__ = ["FrameRing", "PlainLearner", "PlainTrainer", "make_env", "nature_cnn"]

STACK = 4
FRAME_SHAPE = (84, 84)
Frames = npt.NDArray[np.uint8]
# States, actions, rewards, discounts, next states.
Batch = tuple[
    Frames, npt.NDArray[np.int64], npt.NDArray[np.float32], npt.NDArray[np.float32], Frames
]


class FrameRing:
    """The last `capacity` frames of one environment; stacks are built when they are read.

    `age[i]` is the number of frames between slot i and its episode's first frame, `acted[i]` says
    whether an action was taken there.
    """

    def __init__(self, capacity: int, *, discount: float = 0.99, seed: int = 0) -> None:
        self.capacity = capacity
        self.discount = discount
        self.frames = np.zeros((capacity, *FRAME_SHAPE), np.uint8)
        self.actions = np.zeros(capacity, np.int64)
        self.rewards = np.zeros(capacity, np.float32)
        self.terminated = np.zeros(capacity, np.bool_)
        self.acted = np.zeros(capacity, np.bool_)
        self.age = np.zeros(capacity, np.int64)
        self.stored = 0
        self.newest = -1
        self.generator = np.random.default_rng(seed)

    def begin(self, frame: Frames) -> None:
        """Stores the first frame of an episode."""
        self._store(frame, 0)

    def append(self, action: int, reward: float, frame: Frames, terminated: bool) -> None:
        """Stores what the newest frame's action led to; `terminated` ends what is learned from."""
        newest = self.newest
        self.actions[newest] = action
        self.rewards[newest] = np.sign(reward)
        self.terminated[newest] = terminated
        self.acted[newest] = True
        self._store(frame, int(self.age[newest]) + 1)

    def _store(self, frame: Frames, age: int) -> None:
        self.newest = (self.newest + 1) % self.capacity
        self.frames[self.newest] = frame
        self.acted[self.newest] = False
        self.age[self.newest] = age
        self.stored = min(self.stored + 1, self.capacity)

    def stack(self) -> Frames:
        """[4, 84, 84]: what the policy must see now."""
        stack: Frames = self._windows(np.array([self.newest]), np.arange(1 - STACK, 1))[0]
        return stack

    def valid(self, indices: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which slots' transitions can be drawn: acted in, and no frame of the stack evicted."""
        oldest = (self.newest + 1 - self.stored) % self.capacity
        older = (indices - oldest) % self.capacity  # stored frames before each
        complete = older >= np.minimum(self.age[indices], STACK - 1)
        return np.asarray(self.acted[indices] & complete)

    def sample(self, size: int) -> Batch:
        """`size` transitions, uniform over those that can be drawn; hangs where there are none."""
        indices = np.empty(0, np.int64)
        while len(indices) < size:
            drawn = self.generator.integers(self.stored, size=size - len(indices))
            indices = np.concatenate([indices, drawn[self.valid(drawn)]])
        return self.gather(indices)

    def gather(self, indices: npt.NDArray[np.int64]) -> Batch:
        """States, actions, rewards, discounts and next states of the given slots."""
        windows = self._windows(indices, np.arange(1 - STACK, 2))  # [B, 5, 84, 84]
        discounts = np.where(self.terminated[indices], 0.0, self.discount).astype(np.float32)
        states, next_states = windows[:, :-1], windows[:, 1:]
        return states, self.actions[indices], self.rewards[indices], discounts, next_states

    def _windows(self, indices: npt.NDArray[np.int64], offsets: npt.NDArray[np.int64]) -> Frames:
        """The frames at `offsets` from each index, zero where they precede the episode."""
        windows: Frames = self.frames[(indices[:, None] + offsets) % self.capacity]
        absent = offsets < -self.age[indices][:, None]
        if absent.any():
            windows[absent] = 0
        return windows


def nature_cnn(num_actions: int) -> nn.Sequential:
    """The network of Mnih et al. 2015, for [B, 4, 84, 84] float32 in 0 to 1."""
    return nn.Sequential(
        nn.Conv2d(STACK, 32, 8, 4),
        nn.ReLU(),
        nn.Conv2d(32, 64, 4, 2),
        nn.ReLU(),
        nn.Conv2d(64, 64, 3, 1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(3136, 512),
        nn.ReLU(),
        nn.Linear(512, num_actions),
    )


class PlainLearner:
    """The double-DQN update as the PyTorch tutorials write it: contiguous float32, Adam, Huber."""

    def __init__(self, num_actions: int, *, learning_rate: float = 1e-4) -> None:
        self.online = nature_cnn(num_actions)
        self.target = nature_cnn(num_actions)
        self.copy_target()
        self.optimizer = torch.optim.Adam(self.online.parameters(), lr=learning_rate, eps=1.5e-4)

    def copy_target(self) -> None:
        """Makes the target network equal to the online network."""
        self.target.load_state_dict(self.online.state_dict())

    def loss(self, batch: Batch) -> Tensor:
        """The mean Huber loss of a batch."""
        states, actions, rewards, discounts, next_states = map(torch.from_numpy, batch)
        states, next_states = (stacks.float().div_(255) for stacks in (states, next_states))
        with torch.no_grad():
            best = self.online(next_states).argmax(1, keepdim=True)
            target = rewards + discounts * self.target(next_states).gather(1, best).squeeze(1)
        values = self.online(states).gather(1, actions[:, None]).squeeze(1)
        return F.smooth_l1_loss(values, target)

    def update(self, batch: Batch) -> Tensor:
        """One gradient step; returns the loss before it."""
        loss = self.loss(batch)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach()


def make_env(game: str, *, noop_max: int = 30) -> gymnasium.Env[Any, Any]:
    """An Atari game under gymnasium's own preprocessing, without sticky actions.

    `game` as gymnasium names it: "ALE/Breakout-v5".
    """
    gymnasium.register_envs(ale_py)
    env = gymnasium.make(game, frameskip=1, repeat_action_probability=0.0)
    return AtariPreprocessing(env, noop_max=noop_max, frame_skip=4, screen_size=FRAME_SHAPE[0])


class PlainTrainer:
    """Acts, stores and learns in one loop; a lost life is terminal for learning."""

    def __init__(
        self,
        game: str,
        *,
        capacity: int,
        epsilon: float,
        learning_starts_steps: int,
        batch_size: int = 32,
        train_period_steps: int = 4,
        target_period_steps: int = 2_000,
        learning_rate: float = 1e-4,
        seed: int = 0,
    ) -> None:
        self.env = make_env(game)
        self.num_actions = int(self.env.action_space.n)  # type: ignore[attr-defined]
        self.ring = FrameRing(capacity, seed=seed)
        self.learner = PlainLearner(self.num_actions, learning_rate=learning_rate)
        self.epsilon = epsilon
        self.learning_starts_steps = learning_starts_steps
        self.batch_size = batch_size
        self.train_period_steps = train_period_steps
        self.target_period_steps = target_period_steps
        self.generator = np.random.default_rng(seed)
        self.steps = 0
        self.updates = 0
        frame, info = self.env.reset(seed=seed)
        self.ring.begin(frame)
        self.lives = int(info["lives"])

    def train(self, steps: int) -> None:
        """Plays `steps` steps, with an update at every `train_period_steps`."""
        for _ in range(steps):
            self._step()
            self.steps += 1
            if self.steps < self.learning_starts_steps:
                continue
            if self.steps % self.train_period_steps == 0:
                self.learner.update(self.ring.sample(self.batch_size))
                self.updates += 1
            if self.steps % self.target_period_steps == 0:
                self.learner.copy_target()

    def _step(self) -> None:
        action = self._act()
        frame, reward, terminated, truncated, info = self.env.step(action)
        lives = int(info["lives"])
        self.ring.append(action, float(reward), frame, terminated or lives < self.lives)
        self.lives = lives
        if terminated or truncated:
            frame, info = self.env.reset()
            self.ring.begin(frame)
            self.lives = int(info["lives"])

    def _act(self) -> int:
        if self.generator.random() < self.epsilon:
            return int(self.generator.integers(self.num_actions))
        with torch.no_grad():
            stack = torch.from_numpy(self.ring.stack()).float().div_(255)
            return int(self.learner.online(stack[None]).argmax())
