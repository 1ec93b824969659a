"""The process that evaluates beside a run: `python -m fastdqn.evaluation_worker`.

Tasks come as lines on standard input, results go as lines to standard output (see
`fastdqn.evaluator.Background`). It gives way to everything else on the machine, and it ends with
the run, however that ends: the run's end closes standard input.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from typing import BinaryIO


def main() -> None:
    """Carry out tasks until the run has ended."""
    # Nothing but results goes to standard output, whatever a library prints.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    os.nice(10)
    tasks: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, tasks), daemon=True).start()
    try:
        from fastdqn.evaluator import answer  # torch, and all that it takes to play

        while True:
            out.write(json.dumps(answer(json.loads(tasks.get()))).encode() + b"\n")
            out.flush()
    except BaseException:
        # The interpreter cannot end in order while a thread of it waits for standard input.
        traceback.print_exc()
        os._exit(1)


def _listen(source: BinaryIO, tasks: queue.SimpleQueue[str]) -> None:
    """Pass tasks on, and end the process with the one that sends them, in the middle of a game."""
    for line in source:
        tasks.put(line.decode())
    os._exit(0)


if __name__ == "__main__":
    main()
