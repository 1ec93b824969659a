"""Settings: what is refused, with which line, and what leaving things out means."""

from __future__ import annotations

import dataclasses
import math

import pytest

from fastdqn.config import Config
from fastdqn.errors import UserError
from fastdqn.presets import PRESETS


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_envs": 0}, "num_envs=0: expected 1 to 65,536; the default is 1"),
        ({"batch_size": -1}, "batch_size=-1: expected 1 or more; the default is 32"),
        ({"batch_size": 32.0}, "batch_size=32.0: expected a whole number; the default is 32"),
        ({"steps": True}, "steps=True: expected a whole number"),
        ({"double": 1}, "double=1: expected True or False; the default is True"),
        (
            {"learning_rate": 0.0},
            "learning_rate=0.0: expected a number above 0; the default is 0.0001",
        ),
        (
            {"learning_rate": math.nan},
            "learning_rate=nan: expected a finite number; the default is 0.0001",
        ),
        ({"hours": math.inf}, "hours=inf: expected a finite number"),
        ({"discount": 1.5}, "discount=1.5: expected a number from 0 to 1; the default is 0.99"),
        ({"target_tau": 0.0}, "target_tau=0.0: expected a number above 0 and at most 1"),
        (
            {"rmsprop_decay": 1.0},
            "rmsprop_decay=1.0: expected a number from 0 to below 1; the default is 0.95",
        ),
        ({"loss": "hubert"}, "loss='hubert': expected one of huber, squared; did you mean huber?"),
        ({"seed": -1}, "seed=-1: expected 0 or more; the default is 0"),
        (
            {"hidden_units": 64},
            "hidden_units=64: expected a tuple of whole numbers; the default is (128, 128)",
        ),
        (
            {"hidden_units": (64, 0)},
            "hidden_units=(64, 0): expected 1 to 65,536; the default is (128, 128)",
        ),
        ({"game": ""}, "game='': expected a name"),
        ({"epsilon": 0.1}, "epsilon=0.1: expected a function from the step to a probability"),
        (
            {"game": "Pong", "env": "CartPole-v1"},
            "game='Pong' and env='CartPole-v1': a run has one of them; leave one out",
        ),
        (
            {"replay_capacity": 27, "n_step": 3, "num_envs": 2},
            "replay_capacity=27: stack=4, n_step=3 and num_envs=2 need at least 28",
        ),
        (
            {"learning_starts_steps": 5, "n_step": 3, "num_envs": 2},
            "learning_starts_steps=5: nothing can be drawn from the memory before step 6 with "
            "n_step=3 and num_envs=2; give 6 or more",
        ),
        (
            {"learning_starts_steps": 500, "steps": 499},
            "learning_starts_steps=500 and train_period_steps=4: the first update would be at step "
            "500, but the run ends at step 499, so nothing would be learned; give smaller ones, or "
            "a longer run",
        ),
        (
            {"game": "Pong", "learning_starts_steps": 498, "frames": 1_996},
            "learning_starts_steps=498 and train_period_steps=4: the first update would be at step "
            "500, but the run ends at step 499, so nothing would be learned; give smaller ones, or "
            "a longer run",
        ),
        (
            {"learning_starts_steps": 50, "train_period_steps": 5_000, "steps": 400},
            "learning_starts_steps=50 and train_period_steps=5000: the first update would be at "
            "step 5000, but the run ends at step 400, so nothing would be learned; give smaller "
            "ones, or a longer run",
        ),
        ({"stack": 300}, "stack=300: expected 1 to 256; the default is 4"),
        ({"n_step": 70_000}, "n_step=70000: expected 1 to 65,536; the default is 3"),
        (
            {"max_episode_frames": 2**63},
            "max_episode_frames=9223372036854775808: expected 1 to 2^62; the default is 108000",
        ),
        (
            {"hours": 10**400},
            f"hours={10**400}: expected a finite number",
        ),
    ],
)
def test_wrong_settings_are_refused_in_one_line(settings: dict, message: str) -> None:
    with pytest.raises(UserError) as caught:
        Config(**settings)
    assert str(caught.value) == message


def test_the_least_values_are_accepted() -> None:
    Config(replay_capacity=28, n_step=3, num_envs=2, learning_starts_steps=6)
    Config(learning_starts_steps=500, steps=500)
    Config(learning_starts_steps=150, frames=400)  # not a game: a step is one frame


@pytest.mark.parametrize(
    ("ends", "starts"),
    [
        ({}, 20_000),
        ({"hours": 1.0}, 20_000),
        ({"steps": 2_000}, 200),
        ({"steps": 250_000}, 20_000),
        ({"game": "Pong", "frames": 40_000}, 1_000),
        ({"env": "CartPole-v1", "frames": 40_000}, 4_000),
        ({"game": "Pong", "steps": 5_000, "frames": 40_000}, 500),
        ({"steps": 5, "n_step": 2}, 2),
    ],
)
def test_learning_starts_within_a_short_budget(ends: dict, starts: int) -> None:
    assert Config(**ends).resolved().learning_starts_steps == starts


def test_a_run_without_an_end_gets_the_papers_length() -> None:
    assert Config().resolved().steps == 50_000_000
    assert Config(episodes=3).resolved().steps is None


def test_replacing_a_setting_of_an_unresolved_config_resolves_anew() -> None:
    config = dataclasses.replace(Config(), steps=2_000)
    assert config.resolved().learning_starts_steps == 200


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_a_valid_run_of_its_published_length(name: str) -> None:
    config = Config.preset(name, steps=10_000_000)
    assert config.resolved().steps == 10_000_000


# Written out in full from the sources: a default that changes must not change a preset.
_COLUMNS = (
    *("double", "optimizer", "optimizer_epsilon", "learning_rate", "loss", "loss_reduction"),
    *("max_grad_norm", "target_period_steps", "replay_capacity", "learning_starts_steps"),
    *("epsilon_end", "epsilon_decay_steps", "epsilon_decay_from", "evaluation_epsilon"),
    *("reward_clip", "sticky_actions", "life_loss", "padding", "noop_max", "fire_reset"),
    *("first_padding", "shared_last_bias", "initial_weights"),
)
_RMS, _FAN, _XAVIER = "rmsprop_centered", "fan_in_uniform", "xavier_uniform"
_WARM, _ZERO = "learning_starts", "first_step"
_M, _K = 1_000_000, 1_000
# fmt: off
_PUBLISHED: dict[str, tuple[object, ...]] = {
    "nature": (
        False, _RMS, 0.01, 2.5e-4, "huber", "sum", None, 10 * _K, _M, 50 * _K, 0.1, _M, _WARM, 0.05,
        "clip", 0.0, "terminal", "zero", 30, False, 1, False, _FAN,
    ),
    "double": (
        True, _RMS, 0.01, 2.5e-4, "huber", "sum", None, 10 * _K, _M, 50 * _K, 0.1, _M, _WARM, 0.05,
        "clip", 0.0, "terminal", "zero", 30, False, 1, False, _FAN,
    ),
    "double-tuned": (
        True, _RMS, 0.01, 2.5e-4, "huber", "sum", None, 30 * _K, _M, 50 * _K, 0.01, _M, _WARM,
        0.001, "clip", 0.0, "terminal", "zero", 30, False, 1, True, _FAN,
    ),
    "dopamine": (
        False, "adam", 1.5e-4, 6.25e-5, "squared", "mean", None, 8 * _K, _M, 20 * _K, 0.01,
        250 * _K, _WARM, 0.001, "clip", 0.25, "ignore", "zero", 0, False, 0, False, _XAVIER,
    ),
    "dqn-zoo": (
        False, _RMS, 0.01 / 1024, 2.5e-4, "huber", "mean", None, 10 * _K, _M, 50 * _K, 0.1, _M,
        _WARM, 0.05, "clip", 0.0, "terminal", "zero", 30, False, 0, False, _FAN,
    ),
    "dqn-zoo-double": (
        True, _RMS, 0.01 / 1024, 2.5e-4, "huber", "mean", None, 30 * _K, _M, 50 * _K, 0.01, _M,
        _WARM, 0.01, "clip", 0.0, "terminal", "zero", 30, False, 0, True, _FAN,
    ),
    "sb3-zoo": (
        False, "adam", 1e-8, 1e-4, "huber", "mean", 10.0, _K, 100 * _K, 100 * _K, 0.01, _M, _ZERO,
        0.01, "sign", 0.0, "terminal", "zero", 30, True, 0, False, _FAN,
    ),
    "cleanrl": (
        False, "adam", 1e-8, 1e-4, "squared", "mean", None, _K, _M, 80 * _K, 0.01, _M, _ZERO, 0.01,
        "sign", 0.0, "terminal", "repeat", 30, True, 0, False, _FAN,
    ),
}
# fmt: on
_COMMON = {
    "batch_size": 32,
    "train_period_steps": 4,
    "discount": 0.99,
    "frame_skip": 4,
    "stack": 4,
    "n_step": 1,
    "rmsprop_decay": 0.95,
    "epsilon_start": 1.0,
    "max_episode_frames": 108_000,
    "reward_clip_at": "step",
    "full_action_set": False,
    "target_tau": None,
}


@pytest.mark.parametrize("name", _PUBLISHED)
def test_presets_are_what_was_published(name: str) -> None:
    settings = Config.preset(name).to_dict()
    expected = dict(zip(_COLUMNS, _PUBLISHED[name], strict=True)) | _COMMON
    assert {key: settings[key] for key in expected} == expected


def test_presets_take_overrides_and_name_the_nearest() -> None:
    assert Config.preset("nature", game="Pong", batch_size=64).batch_size == 64
    with pytest.raises(UserError, match="did you mean nature"):
        Config.preset("natur")
    with pytest.raises(UserError, match=r"'batchsize'.*did you mean batch_size"):
        Config.preset("nature", batchsize=64)


def test_settings_survive_json() -> None:
    import json

    config = Config.preset("double-tuned", game="Pong", hidden_units=(3, 4))
    assert Config.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_every_field_has_a_help_text() -> None:
    from tyro import cli

    with pytest.raises(SystemExit) as caught:
        cli(Config, args=["--help"], console_outputs=False)
    assert caught.value.code == 0
    import ast
    import inspect

    (body,) = ast.parse(inspect.getsource(Config)).body
    assert isinstance(body, ast.ClassDef)
    for item, after in zip(body.body, body.body[1:], strict=False):
        if isinstance(item, ast.AnnAssign):
            assert isinstance(after, ast.Expr), f"{ast.unparse(item.target)} has no docstring"
