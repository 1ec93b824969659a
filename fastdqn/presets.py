"""Settings that have a name: what was published, with its source and every known difference.

A preset holds all settings of an algorithm, so that a default that changes changes no preset but
`default`. How long to train is the run's own choice. Where a source states frames, they are divided
by the frame skip of 4. `fastdqn.preset_texts` makes of these data what the command prints and
docs/presets.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

__all__ = ["CLASSIC", "PRESETS", "Preset", "settings_of"]


@dataclass(frozen=True)
class Preset:
    """Published settings, each by its name in `Config`; what is not named has `Config`'s default.

    A difference is a sentence that says what is otherwise here than in the source.
    """

    source: str
    differences: tuple[str, ...]
    settings: Mapping[str, Any]


# What all of the published have in common, or most of them.
_COMMON: dict[str, Any] = {
    "frame_skip": 4,
    "sticky_actions": 0.0,
    "full_action_set": False,
    "noop_max": 30,
    "fire_reset": False,
    "life_loss": "terminal",
    "reward_clip": "sign",
    "reward_clip_at": "step",
    "max_episode_frames": 108_000,
    "stack": 4,
    "padding": "zero",
    "n_step": 1,
    "replay_capacity": 1_000_000,
    "replay_eviction": "fifo",
    "discount": 0.99,
    "double": False,
    "loss": "huber",
    "loss_reduction": "mean",
    "optimizer": "adam",
    "learning_rate": 1e-4,
    "rmsprop_decay": 0.95,
    "max_grad_norm": None,
    "batch_size": 32,
    "train_period_steps": 4,
    "target_tau": None,
    "first_padding": 0,
    "shared_last_bias": False,
    "initial_weights": "fan_in_uniform",
    "epsilon_start": 1.0,
    "epsilon_end": 0.01,
    "epsilon_decay_from": "learning_starts",
    "evaluation_epsilon": 0.01,
}

# Mnih et al. 2015, as DeepMind's Lua code has it. The error is clipped to +-1 and gradients are
# summed over the batch; the optimizer's epsilon stands inside the root.
_NATURE: dict[str, Any] = {
    **_COMMON,
    "optimizer": "rmsprop_centered",
    "learning_rate": 2.5e-4,
    "optimizer_epsilon": 0.01,
    "loss_reduction": "sum",
    "target_period_steps": 10_000,
    "learning_starts_steps": 50_000,
    "epsilon_end": 0.1,
    "epsilon_decay_steps": 1_000_000,
    "evaluation_epsilon": 0.05,
    "reward_clip": "clip",
    "first_padding": 1,
}

_DOUBLE_TUNED: dict[str, Any] = {
    **_NATURE,
    "double": True,
    "target_period_steps": 30_000,
    "epsilon_end": 0.01,
    "evaluation_epsilon": 0.001,
    "shared_last_bias": True,
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
    **_COMMON,
    "optimizer_epsilon": 1e-8,
    "loss": "squared",
    "target_period_steps": 1_000,
    "learning_starts_steps": 80_000,
    # The first tenth of its run of 10 million steps.
    "epsilon_decay_steps": 1_000_000,
    "epsilon_decay_from": "first_step",
    "padding": "repeat",
    "fire_reset": True,
}

_BILINEAR = "Frames are resized by averaging areas; there bilinearly."
_LUA = (
    _BILINEAR,
    "Every game may take 108,000 frames; in the paper's evaluations 18,000.",
    "The target period counts steps of the agent, as the code does; the paper's table words it in "
    "updates.",
)
_ZOO = (
    _BILINEAR,
    "Games start with 0 to 30 no-ops; there with 1 to 30.",
    "The bound on gradients is written as the Huber loss, whose gradient has the same bound.",
)
_FIRE = (
    "A FIRE after a lost life takes the place of the agent's next action; there a reset of its "
    "own follows, which presses a second button too.",
    "Exploration falls over 1,000,000 steps whatever the run's length; there over its first tenth, "
    "of 10 million steps.",
)

PRESETS: dict[str, Preset] = {
    "default": Preset(
        "fastdqn's own: a double DQN with returns of 3 steps, which learns within a few million "
        "frames on one machine (docs/results.md).",
        (),
        {},
    ),
    "nature": Preset(
        "Mnih et al. 2015, Human-level control through deep reinforcement learning, as DeepMind's "
        "Lua code has it.",
        _LUA,
        _NATURE,
    ),
    "double": Preset(
        "van Hasselt et al. 2016, Deep reinforcement learning with double Q-learning: nature's "
        "settings with the double target.",
        _LUA,
        {**_NATURE, "double": True},
    ),
    "double-tuned": Preset(
        "van Hasselt et al. 2016, the tuned double DQN.",
        _LUA,
        _DOUBLE_TUNED,
    ),
    "dopamine": Preset(
        "Dopamine's JAX DQN, dqn.gin (Castro et al. 2018).",
        ("Areas are averaged exactly; OpenCV, there, may differ by one grey level.",),
        {
            **_COMMON,
            "learning_rate": 6.25e-5,
            "optimizer_epsilon": 1.5e-4,
            "loss": "squared",
            "target_period_steps": 8_000,
            "learning_starts_steps": 20_000,
            "epsilon_decay_steps": 250_000,
            "evaluation_epsilon": 0.001,
            "reward_clip": "clip",
            "sticky_actions": 0.25,
            "life_loss": "ignore",
            "noop_max": 0,
            "initial_weights": "xavier_uniform",
        },
    ),
    "dqn-zoo": Preset("DQN Zoo's dqn (Quan and Ostrovski 2020).", _ZOO, _DQN_ZOO),
    "dqn-zoo-double": Preset(
        "DQN Zoo's double_q (Quan and Ostrovski 2020).",
        _ZOO,
        {
            **_DQN_ZOO,
            "double": True,
            "target_period_steps": 30_000,
            "epsilon_end": 0.01,
            "evaluation_epsilon": 0.01,
            "shared_last_bias": True,
        },
    ),
    "sb3-zoo": Preset(
        "RL Baselines3 Zoo's DQN for Atari, on Stable-Baselines3.",
        (
            *_FIRE,
            "Evaluations explore at 0.01; there as much as training does at the time.",
        ),
        {
            **_CLEANRL,
            "loss": "huber",
            "max_grad_norm": 10.0,
            "replay_capacity": 100_000,
            "learning_starts_steps": 100_000,
            "padding": "zero",
        },
    ),
    "cleanrl": Preset("CleanRL's dqn_atari.py.", _FIRE, _CLEANRL),
    "classic": Preset(
        "fastdqn's own, for environments whose observations are vectors: minutes, not days.",
        (),
        {
            **_COMMON,
            "steps": 50_000,
            "stack": 1,
            "replay_capacity": 50_000,
            "learning_rate": 5e-4,
            "n_step": 3,
            "double": True,
            "optimizer_epsilon": 1e-8,
            "batch_size": 64,
            "train_period_steps": 1,
            # Values run away from a target that follows at 0.01: CartPole's at last, MountainCar's
            # before its first goal.
            "target_tau": 0.003,
            "learning_starts_steps": 1_000,
            "epsilon_end": 0.02,
            "epsilon_decay_steps": 5_000,
            "evaluation_epsilon": 0.0,
            "hidden_units": (128, 128),
            # Layers this small are done before a second thread has woken up.
            "threads": 1,
        },
    ),
}

# What `classic` has otherwise in single environments, by their ids.
CLASSIC: dict[str, dict[str, Any]] = {
    # A greedy policy that has learned little never swings up, and learns nothing any more: there
    # must be random play until it has.
    "Acrobot-v1": {
        "steps": 80_000,
        "replay_capacity": 80_000,
        "learning_rate": 1e-3,
        "n_step": 5,
        "batch_size": 128,
        "train_period_steps": 4,
        "target_tau": 0.02,
        "epsilon_decay_steps": 60_000,
    },
    # Velocities are 0.07 at most: as they are, a network hardly sees them, and what it has not seen
    # yet does not look better to it than what it has.
    "MountainCar-v0": {
        "preprocess": "rescale",
        "steps": 120_000,
        "replay_capacity": 120_000,
        "learning_rate": 1e-3,
        "batch_size": 128,
        "train_period_steps": 2,
        "epsilon_end": 0.05,
        "epsilon_decay_steps": 20_000,
    },
}


def settings_of(name: str, env: str | None = None) -> dict[str, Any]:
    """The settings of the preset, in this environment. KeyError for an unknown name."""
    settings = dict(PRESETS[name].settings)
    if name == "classic" and env is not None:
        settings |= CLASSIC.get(env, {})
    return settings
