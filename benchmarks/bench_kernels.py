"""Instructions that the core's kernels execute in one call, counted by callgrind.

    python benchmarks/bench_kernels.py [--json PATH]

Counts repeat to a few instructions on a machine however busy, so they show a change of a percent
that no clock here would. They are not times: a copied byte and a division count by what they are
compiled to. They depend on the compiler, the C library and what callgrind makes the program believe
of the processor (AVX2 at most). Needs valgrind and a C++20 compiler.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
# Of a release build; the processor is left at the compiler's baseline, as in the package.
FLAGS = ("-std=c++20", "-O3", "-DNDEBUG", "-pthread")
FEW, MANY = 10, 40  # calls in the two runs whose difference is counted
WORK = {
    "apply_max": "the maximum of two screens, averaged to 84 x 84",
    "append": "one step of one environment into a full memory",
    "sample_planar": "a batch of 32 transitions, stacks of 4",
    "sample_channels_last": "the same, channels last",
}


def main() -> int:
    """Builds the driver, counts every kernel and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", type=Path, metavar="PATH", help="also write the counts there")
    options = parser.parse_args()
    compiler = os.environ.get("CXX", "c++")
    for tool in ("valgrind", compiler):
        if shutil.which(tool) is None:
            print(f"bench_kernels: {tool} is not installed", file=sys.stderr)
            return 2
    with tempfile.TemporaryDirectory() as folder:
        driver = Path(folder) / "bench_kernels"
        sources = [*(ROOT / "csrc/fastdqn").glob("*.cpp"), Path(__file__).with_suffix(".cpp")]
        command = [compiler, *FLAGS, f"-I{ROOT / 'csrc'}", "-o", str(driver), *map(str, sources)]
        if subprocess.run(command).returncode != 0:
            print(f"bench_kernels: {compiler} failed, as it says above", file=sys.stderr)
            return 2
        names = subprocess.run([driver], check=True, capture_output=True, text=True).stdout.split()
        counts = {name: instructions_per_call(driver, name) for name in names}
    version = subprocess.run([compiler, "--version"], check=True, capture_output=True, text=True)
    about = version.stdout.splitlines()[0] + " " + " ".join(FLAGS)

    table = Table(title=about, title_style="", title_justify="left")
    table.add_column("kernel")
    table.add_column("one call is")
    table.add_column("instructions a call", justify="right")
    for name, count in counts.items():
        table.add_row(name, WORK.get(name, ""), f"{count:,.0f}")
    Console(width=None if sys.stdout.isatty() else 120).print(table)
    if options.json is not None:
        options.json.write_text(json.dumps({"compiler": about, "instructions": counts}, indent=1))
    return 0


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
