"""`python -m fastdqn` is the command `fastdqn-train`."""

from __future__ import annotations

import sys

from fastdqn.cli import train_main

if __name__ == "__main__":
    sys.exit(train_main())
