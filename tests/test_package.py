"""The package as a person meets it: importing, the clone's root, a missing compiled part."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import fastdqn

ROOT = Path(__file__).resolve().parent.parent


def run_python(code: str, cwd: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *flags, "-c", code], cwd=cwd, capture_output=True, text=True, timeout=120
    )


def test_every_public_name_can_be_loaded_and_has_a_docstring() -> None:
    for name in fastdqn.__all__:
        value = getattr(fastdqn, name)
        if name != "__version__":
            assert value.__doc__, name
    assert set(fastdqn.__all__) <= set(dir(fastdqn))


def test_importing_is_silent_under_error_warnings_and_loads_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys, fastdqn; "
        "print([m for m in ('torch', 'gymnasium', 'numpy', 'ale_py') if m in sys.modules])"
    )
    result = run_python(code, tmp_path, "-W", "error")
    assert (result.returncode, result.stdout, result.stderr) == (0, "[]\n", "")


def test_all_public_names_load_silently_under_error_warnings(tmp_path: Path) -> None:
    code = "import fastdqn; [getattr(fastdqn, name) for name in fastdqn.__all__]"
    result = run_python(code, tmp_path, "-W", "error")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")


def test_the_clones_own_root_imports_the_installed_package() -> None:
    code = "import fastdqn, fastdqn._core as core; print(fastdqn.__version__ == core.__version__)"
    result = run_python(code, ROOT)
    assert (result.returncode, result.stdout) == (0, "True\n"), result.stderr


def test_a_missing_compiled_part_names_the_command_that_mends_it(tmp_path: Path) -> None:
    shutil.copytree(
        ROOT / "fastdqn", tmp_path / "fastdqn", ignore=shutil.ignore_patterns("*.so", "__pycache__")
    )

    def message() -> str:
        # -S and -E: no site-packages, so no installed copy can answer.
        result = run_python("import fastdqn", tmp_path, "-S", "-E")
        assert result.returncode == 1
        last = result.stderr.strip().splitlines()[-1]
        assert last.startswith("ImportError: fastdqn's compiled part")
        return last

    assert "--no-deps CLONE, where CLONE is" in message()
    (tmp_path / "pyproject.toml").touch()
    assert message().endswith(f"-m pip install --force-reinstall --no-deps {tmp_path}")


def test_the_stubs_say_what_the_compiled_modules_have(tmp_path: Path) -> None:
    config = ROOT / "pyproject.toml"
    result = subprocess.run(
        [
            *(sys.executable, "-m", "mypy.stubtest", f"--mypy-config-file={config}"),
            *("fastdqn._core", "fastdqn._rollout"),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert result.returncode == 0, result.stdout + result.stderr
