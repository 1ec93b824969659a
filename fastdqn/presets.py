"""Published settings, each a difference from the defaults of `Config`.

A preset holds the settings of an algorithm. How long to train is the run's own choice. Where a
source states frames, they are divided by the frame skip of 4. Known departures, which hold for all:
frames are resized by area averaging (DeepMind's code resizes bilinearly), games start with 0 to 30
no-ops (DQN Zoo: 1 to 30), a FIRE after a lost life takes the place of the agent's next action (SB3
and CleanRL: a reset of its own, which also presses a second button), exploration that a source
anneals over a tenth of its run takes 1,000,000 steps whatever the run's length, and SB3's
evaluation, which explores as much as training does at the time, explores at its last rate.
"""

from __future__ import annotations

from typing import Any

__all__ = ["PRESETS"]

# Mnih et al. 2015, as DeepMind's Lua code has it. The error is clipped to +-1 and gradients are
# summed over the batch; the optimizer's epsilon stands inside the root.
_NATURE: dict[str, Any] = {
    "double": False,
    "optimizer": "rmsprop_centered",
    "learning_rate": 2.5e-4,
    "optimizer_epsilon": 0.01,
    "loss_reduction": "sum",
    "target_period_steps": 10_000,
    "replay_capacity": 1_000_000,
    "learning_starts_steps": 50_000,
    "epsilon_end": 0.1,
    "epsilon_decay_steps": 1_000_000,
    "evaluation_epsilon": 0.05,
    "reward_clip": "clip",
    "first_padding": 1,
}

# DQN Zoo bounds each gradient by 1/32 in a mean of 32: nature's sum, scaled by 1/32, and so is
# the root in the denominator.
_DQN_ZOO: dict[str, Any] = {
    **_NATURE,
    "loss_reduction": "mean",
    "optimizer_epsilon": 0.01 / 32**2,
    "first_padding": 0,
}

_CLEANRL: dict[str, Any] = {
    "double": False,
    "optimizer_epsilon": 1e-8,
    "loss": "squared",
    "target_period_steps": 1_000,
    "replay_capacity": 1_000_000,
    "learning_starts_steps": 80_000,
    # The first tenth of its run of 10 million steps.
    "epsilon_decay_steps": 1_000_000,
    "epsilon_decay_from": "first_step",
    "padding": "repeat",
    "fire_reset": True,
}

PRESETS: dict[str, dict[str, Any]] = {
    "default": {},
    "nature": _NATURE,
    "double": {**_NATURE, "double": True},
    "double-tuned": {
        **_NATURE,
        "double": True,
        "target_period_steps": 30_000,
        "epsilon_end": 0.01,
        "evaluation_epsilon": 0.001,
        "shared_last_bias": True,
    },
    "dopamine": {
        "double": False,
        "learning_rate": 6.25e-5,
        "loss": "squared",
        "target_period_steps": 8_000,
        "replay_capacity": 1_000_000,
        "learning_starts_steps": 20_000,
        "evaluation_epsilon": 0.001,
        "reward_clip": "clip",
        "sticky_actions": 0.25,
        "life_loss": "ignore",
        "noop_max": 0,
        "initial_weights": "xavier_uniform",
    },
    "dqn-zoo": _DQN_ZOO,
    "dqn-zoo-double": {
        **_DQN_ZOO,
        "double": True,
        "target_period_steps": 30_000,
        "epsilon_end": 0.01,
        "evaluation_epsilon": 0.01,
        "shared_last_bias": True,
    },
    "sb3-zoo": {
        **_CLEANRL,
        "loss": "huber",
        "max_grad_norm": 10.0,
        "replay_capacity": 100_000,
        "learning_starts_steps": 100_000,
        "padding": "zero",
    },
    "cleanrl": _CLEANRL,
    # Ours, for vector observations such as CartPole's: no source to follow. Minutes, not days.
    "classic": {
        "steps": 50_000,
        "stack": 1,
        "replay_capacity": 50_000,
        "learning_rate": 5e-4,
        "n_step": 3,
        "optimizer_epsilon": 1e-8,
        "batch_size": 64,
        "train_period_steps": 1,
        "target_tau": 0.01,  # copies now and then made some seeds forget what they had learned
        "learning_starts_steps": 1_000,
        "epsilon_end": 0.02,
        "epsilon_decay_steps": 5_000,
        "evaluation_epsilon": 0.0,
        # Layers this small are done before a second thread has woken up.
        "threads": 1,
    },
}
