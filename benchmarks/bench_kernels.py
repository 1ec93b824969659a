"""Instructions that the core's kernels execute in one call, counted by callgrind.

    python benchmarks/bench_kernels.py

Counts repeat to a few instructions on a machine however busy, so they show a change of a percent
that no clock here would. They are not times: a copied byte and a division count by what they are
compiled to. They depend on the compiler, the C library and what callgrind makes the program believe
of the processor (AVX2 at most). Needs valgrind and a C++20 compiler.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from harness import Row, print_row
from rich.console import Console

__all__ = ["kernels"]

ROOT = Path(__file__).resolve().parents[1]
# Of a release build; the processor is left at the compiler's baseline, as in the package.
FLAGS = ("-std=c++20", "-O3", "-DNDEBUG", "-pthread")
FEW, MANY = 10, 40  # calls in the two runs whose difference is counted


def kernels(_: object = None) -> Iterator[Row]:
    """Instructions of one call of each kernel; absent where the tools are."""
    row = Row("kernels", "Kernels of the C++ core, one call", "instructions", "nothing")
    compiler = os.environ.get("CXX", "c++")
    missing = [tool for tool in ("valgrind", compiler) if shutil.which(tool) is None]
    if missing:
        row.absent["all kernels"] = f"{' and '.join(missing)} not installed"
        yield row
        return
    with tempfile.TemporaryDirectory() as folder:
        driver = build(compiler, Path(folder))
        listed = subprocess.run([driver], check=True, capture_output=True, text=True)
        for line in listed.stdout.splitlines():
            kernel, work = line.split(": ", 1)
            row.put(f"{kernel}: {work}", instructions_per_call(driver, kernel))
    version = subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True)
    row.notes.append(f"counted by callgrind; {version.stdout.splitlines()[0]} {' '.join(FLAGS)}")
    yield row


def build(compiler: str, folder: Path) -> Path:
    """The driver with all of the core, its files compiled side by side."""
    sources = [*(ROOT / "csrc/fastdqn").glob("*.cpp"), Path(__file__).with_suffix(".cpp")]

    def compiled(*arguments: str | Path, out: Path) -> Path:
        command = [compiler, *FLAGS, f"-I{ROOT / 'csrc'}", "-o", out, *arguments]
        run = subprocess.run(command, capture_output=True, text=True)
        if run.returncode != 0:
            raise RuntimeError(f"{compiler} failed:\n{run.stderr}")
        return out

    with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        objects = list(
            pool.map(lambda file: compiled("-c", file, out=folder / f"{file.stem}.o"), sources)
        )
    return compiled(*objects, out=folder / "bench_kernels")


def main() -> int:
    """Counts every kernel and prints the table."""
    for row in kernels():
        print_row(Console(width=None if sys.stdout.isatty() else 120), row)
    return 2 if row.absent else 0


def instructions_per_call(driver: Path, kernel: str) -> float:
    """The instructions that more calls cost more."""
    few, many = (instructions(driver, kernel, times) for times in (FEW, MANY))
    return (many - few) / (MANY - FEW)


def instructions(driver: Path, kernel: str, times: int) -> int:
    """Those of a whole run."""
    tool = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"]
    command = [*tool, str(driver), kernel, str(times)]
    run = subprocess.run(command, check=True, capture_output=True, text=True)
    found = re.search(r"Collected\s*:\s*(\d+)", run.stderr)
    if found is None:
        raise RuntimeError(f"callgrind gave no count:\n{run.stderr}")
    return int(found[1])


if __name__ == "__main__":
    sys.exit(main())
