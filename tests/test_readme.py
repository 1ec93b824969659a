"""The README's scripts run as they stand there, apart from their length."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SCRIPTS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
SHORTER = {
    "steps=1_000_000": "steps=400, learning_starts_steps=100, replay_capacity=1_000",
    "episodes=30": "episodes=1, max_frames=400",
}


def test_the_readme_has_its_scripts() -> None:
    assert len(SCRIPTS) == 2
    for long in SHORTER:
        assert sum(long in script for script in SCRIPTS) == 1


@pytest.mark.parametrize("number", range(len(SCRIPTS)))
def test_a_script_runs(number: int, tmp_path: Path) -> None:
    script = SCRIPTS[number]
    for long, short in SHORTER.items():
        script = script.replace(long, short)
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", script],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stderr
    assert result.stderr == ""
