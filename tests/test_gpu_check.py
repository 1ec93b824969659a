"""The GPU check: every check that runs on a CPU passes there, and its report tells the truth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gpu_check
import pytest
import torch
from gpu_check import Check, Failed, Setting

CPU = Setting(torch.device("cpu"), small=True)


@pytest.mark.parametrize(
    "check", [check for check in gpu_check.CHECKS if not check.needs_gpu], ids=lambda c: c.name
)
def test_the_check_passes_on_a_cpu(check: Check) -> None:
    outcome = gpu_check.run_check(check, CPU, left_seconds=1_000)
    assert outcome.passed, outcome.text


@pytest.mark.cuda
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("check", gpu_check.CHECKS, ids=lambda c: c.name)
def test_the_check_passes_on_a_gpu(check: Check) -> None:
    setting = Setting(torch.device("cuda"), small=False)
    outcome = gpu_check.run_check(check, setting, left_seconds=1_000)
    assert outcome.passed, outcome.text


def test_all_checks_together_keep_the_time() -> None:
    assert sum(check.budget_seconds for check in gpu_check.CHECKS) <= gpu_check.TOTAL_SECONDS


def passes(_: Setting) -> dict[str, Any]:
    return {"updates/s": 1234.5678, "table": "a | b"}


def fails(_: Setting) -> dict[str, Any]:
    raise Failed("a batch was torn")


def breaks(_: Setting) -> dict[str, Any]:
    raise ZeroDivisionError("by zero")


def test_a_failed_check_stops_no_other_and_shows_in_report_and_status(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checks = [Check("first", 5, fails), Check("second", 5, breaks), Check("third", 5, passes)]
    monkeypatch.setattr(gpu_check, "CHECKS", checks)
    assert gpu_check.main(["--dry-run", "--out", str(tmp_path)]) == 1
    whole = json.loads((tmp_path / "gpu_check.json").read_text())
    assert [check["passed"] for check in whole["checks"]] == [False, False, True]
    text = (tmp_path / "gpu_check.md").read_text()
    assert "1 of 3 passed" in text
    assert "a batch was torn" in text
    assert "ZeroDivisionError: by zero" in text
    assert "updates/s 1,235" in text
    assert "a | b" in text
    monkeypatch.setattr(gpu_check, "CHECKS", checks[2:])
    assert gpu_check.main(["--dry-run", "--out", str(tmp_path)]) == 0


def test_what_there_is_no_time_for_is_not_run_and_has_not_passed() -> None:
    outcome = gpu_check.run_check(Check("late", 10, passes), CPU, left_seconds=3)
    assert not outcome.passed
    assert "3 s were left" in outcome.text


def test_a_check_that_takes_too_long_has_not_passed() -> None:
    full = Setting(torch.device("cpu"), small=False)
    outcome = gpu_check.run_check(Check("slow", 1e-9, passes), full, left_seconds=100)
    assert not outcome.passed
    assert "took" in outcome.text


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_without_a_gpu_it_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert gpu_check.main([]) == 2
    assert "no CUDA device" in capsys.readouterr().err
