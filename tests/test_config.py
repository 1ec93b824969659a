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
        ({"num_envs": 0}, "num_envs=0: expected 1 or more; the default is 1"),
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
            "hidden_units=(64, 0): expected 1 or more; the default is (128, 128)",
        ),
        ({"game": ""}, "game='': expected a name"),
        ({"epsilon": 0.1}, "epsilon=0.1: expected a function from the step to a probability"),
        (
            {"game": "Pong", "env": "CartPole-v1"},
            "game='Pong' and env='CartPole-v1': a run has one of them; leave one out",
        ),
        (
            {"replay_capacity": 13, "n_step": 3, "num_envs": 2},
            "replay_capacity=13: stack=4, n_step=3 and num_envs=2 need at least 14",
        ),
        (
            {"learning_starts_steps": 5, "n_step": 3, "num_envs": 2},
            "learning_starts_steps=5: nothing can be drawn from the memory before step 6 with "
            "n_step=3 and num_envs=2; give 6 or more",
        ),
        (
            {"learning_starts_steps": 500, "steps": 500},
            "learning_starts_steps=500: the run ends at step 500, so nothing would be learned; "
            "give fewer than 500, or a longer run",
        ),
        (
            {"learning_starts_steps": 500, "frames": 1999},
            "learning_starts_steps=500: the run ends at step 500, so nothing would be learned; "
            "give fewer than 500, or a longer run",
        ),
    ],
)
def test_wrong_settings_are_refused_in_one_line(settings: dict, message: str) -> None:
    with pytest.raises(UserError) as caught:
        Config(**settings)
    assert str(caught.value) == message


def test_the_least_values_are_accepted() -> None:
    Config(replay_capacity=14, n_step=3, num_envs=2, learning_starts_steps=6)
    Config(learning_starts_steps=499, steps=500)


@pytest.mark.parametrize(
    ("ends", "starts"),
    [
        ({}, 20_000),
        ({"hours": 1.0}, 20_000),
        ({"steps": 2_000}, 200),
        ({"steps": 250_000}, 20_000),
        ({"frames": 40_000}, 1_000),
        ({"steps": 5_000, "frames": 40_000}, 500),
        ({"steps": 3, "n_step": 2}, 2),
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
