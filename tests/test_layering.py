"""The layers of the house: who may import whom. CONTRIBUTING.md has the table."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "fastdqn"

# module -> the modules of the package that it may import. `envs` stands for its whole package.
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "_rollout": set(),
    "replay": {"_core"},
    "schedules": set(),
    "threads": {"_core"},
    "optimizers": {"_core", "threads"},
    "units": set(),
    "config": {"errors", "presets", "units"},
    "presets": set(),
    "preset_texts": {"config", "presets"},
    "networks": {"errors"},
    "envs": {"_rollout", "errors"},
    "layers": set(),
    "inputs": set(),
    "q_learning": {"_core"},
    "native": {"_core", "inputs", "networks", "optimizers", "q_learning", "threads"},
    "passes": {"inputs", "layers", "native", "networks"},
    "processor": set(),
    "learner": {"native", "optimizers", "passes", "q_learning"},
    "graphs": set(),
    "lanes": set(),
    "device_replay": {"errors", "lanes", "units"},
    "staging": {"device_replay", "lanes", "networks", "replay"},
    "actor": {"lanes"},
    "agent": {"config"},
    "machine": {"errors"},
    "frame_sizes": set(),
    "memory_use": {"agent", "envs", "replay"},
    "cli_memory": {"budget", "checkpoint", "command", "envs", "errors", "memory_use", "units"},
    "budget": {"config", "errors", "frame_sizes", "machine", "units"},
    "checkpoint": {"agent", "config", "errors", "machine", "networks"},
    "scores": set(),
    "evaluation": {"agent", "envs", "errors", "networks", "replay", "scores"},
    "held_out": {"agent", "config", "envs", "errors", "evaluation"},
    "evaluator": {
        *("agent", "checkpoint", "config", "envs", "errors", "evaluation", "held_out", "metrics"),
        "scores",
    },
    "evaluation_worker": {"evaluator"},
    "metrics": {"errors", "scores"},
    "run_state": {"errors", "replay"},
    "run_folder": {"agent", "checkpoint", "config", "errors", "metrics", "run_state"},
    "display": {"metrics", "units"},
    "trainer": {
        *("actor", "agent", "budget", "checkpoint", "config", "device_replay", "envs", "errors"),
        "evaluator",
        *("graphs", "lanes", "learner", "machine", "metrics", "networks", "optimizers"),
        *("processor", "replay", "run_folder", "schedules", "staging"),
    },
    "resuming": {"config", "envs", "errors", "metrics", "run_folder", "run_state", "trainer"},
    "plots": {"config", "errors", "presets"},
    "command": {"errors"},
    "cli_plot": {"command", "errors", "plots"},
    "cli": {
        *("command", "config", "display", "errors", "preset_texts", "presets", "resuming"),
        "trainer",
    },
    "video": {"agent", "envs", "errors", "evaluation", "scores"},
    "cli_eval": {"video", "agent", "checkpoint", "command", "errors", "evaluation", "scores"},
    "__main__": {"cli"},
}
NEEDS_TORCH = {
    "processor",
    "device_replay",
    "graphs",
    "lanes",
    "layers",
    "passes",
    "inputs",
    "native",
    "q_learning",
    "threads",
    "networks",
    "optimizers",
    "learner",
    "staging",
    "actor",
    "agent",
    "machine",
    "budget",
    "checkpoint",
    "trainer",
}
NEEDS_TORCH |= {"evaluation", "evaluator", "cli_eval"}
NEEDS_ENVIRONMENTS = {"envs"}


def unit(path: Path) -> str:
    relative = path.relative_to(PACKAGE)
    return relative.parts[0] if len(relative.parts) > 1 else relative.stem


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


SOURCES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "__init__.py")


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_arrows_run_one_way(path: Path) -> None:
    here = unit(path)
    for name in imports(path):
        parts = name.split(".")
        if parts[0] == "torch":
            assert here in NEEDS_TORCH, f"{here} imports torch"
        elif parts[0] in {"gymnasium", "ale_py"}:
            assert here in NEEDS_ENVIRONMENTS, f"{here} imports {parts[0]}"
        elif parts[0] == "pickle":
            raise AssertionError(f"{path}: pickle")
        elif parts[0] == "fastdqn" and len(parts) > 1:
            assert parts[1] in ALLOWED[here] | {here}, f"{here} imports {name}"


def test_the_oracle_imports_nothing_of_the_package() -> None:
    assert not any(
        name.split(".")[0] == "fastdqn" for name in imports(ROOT / "tests" / "oracle.py")
    )


def test_the_core_knows_neither_python_nor_numpy_nor_torch() -> None:
    forbidden = ("Python.h", "pybind11", "numpy", "torch", "iostream", "cstdio")
    for path in sorted((ROOT / "csrc" / "fastdqn").iterdir()):
        for line in path.read_text().splitlines():
            if line.lstrip().startswith("#include"):
                assert not any(word in line for word in forbidden), f"{path.name}: {line}"
