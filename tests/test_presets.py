"""What a preset says of itself: in the terminal and on its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from fastdqn.cli import _parse, train_main
from fastdqn.config import Config
from fastdqn.preset_texts import preset_list, preset_text, presets_page
from fastdqn.presets import CLASSIC, PRESETS

PAGE = Path(__file__).resolve().parent.parent / "docs" / "presets.md"


def test_the_page_is_made_of_the_data() -> None:
    assert PAGE.read_text() == presets_page(), "python -m fastdqn.preset_texts > docs/presets.md"


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_names_its_source_and_differences(name: str) -> None:
    text = preset_text(name)
    assert text.startswith(f"preset {name}: ")
    words = " ".join(text.replace("\n  - ", "\n  ").split())
    for sentence in (PRESETS[name].source, *PRESETS[name].differences):
        assert sentence in words
        assert sentence.endswith(".")
    assert max(map(len, text.splitlines())) <= 80
    assert bool(PRESETS[name].differences) == (name not in ("default", "classic"))
    assert text in preset_list()


def test_published_presets_leave_no_setting_of_the_algorithm_to_the_defaults() -> None:
    named = {name: set(preset.settings) for name, preset in PRESETS.items()}
    published = [name for name in PRESETS if name not in ("default", "classic")]
    assert len(published) == 8
    for name in published:
        assert named[name] == named["nature"], name


def test_the_list(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        train_main(["--list-presets"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == preset_list() + "\n"


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_is_recognised_until_it_is_changed(name: str) -> None:
    config = Config.preset(name, env=None if name != "classic" else "CartPole-v1", steps=10**6)
    assert config.resolved().preset_name == name
    assert Config.preset(name, steps=10**6, learning_rate=0.123).preset_name is None


@pytest.mark.parametrize("env", CLASSIC)
def test_an_environment_gets_its_own_settings(env: str) -> None:
    config = Config.preset("classic", env=env)
    assert {key: getattr(config, key) for key in CLASSIC[env]} == CLASSIC[env]
    assert config == _parse(["--env", env])[0] == _parse([f"--env={env}"])[0]
    assert config.preset_name == "classic"
    assert f"in {env} it has" in preset_text("classic", env)
    key, value = next((k, v) for k, v in CLASSIC[env].items() if k.endswith("_steps"))
    assert getattr(Config.preset("classic", env=env, **{key: 7 * value}), key) == 7 * value
    other = Config.preset("classic", env="CartPole-v1")
    assert other != Config.preset("classic", env=env)
