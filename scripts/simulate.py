"""Play many seeds of Edge and Nodes on all cores, and print the figures (`make simulate`; reliability.md).

    python scripts/simulate.py [--seeds N] [--first N]

Exits 1 when a seed breaks an invariant; `IOP_SEED=N pytest tests/simulation` plays it again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.sim.many import play


def main() -> int:
    """Play, count, and name each seed that failed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=20_000, help="how many (20000)")
    parser.add_argument("--first", type=int, default=0, help="the first of them (0)")
    given = parser.parse_args()
    began = time.monotonic()
    steps, failed, faults = 0, 0, Counter[str]()
    for seed, outcome in play(range(given.first, given.first + given.seeds)):
        if isinstance(outcome, str):
            failed += 1
            print(f"seed {seed}: {outcome}", flush=True)
            continue
        steps += outcome.steps
        faults.update({name: count for name, count in outcome.events.items() if name.startswith("fault ")})
    took = time.monotonic() - began
    print(f"{given.seeds} seeds, {steps} steps, {failed} violations, {took:.0f} s ({steps / took:.0f} steps/s)")
    print(", ".join(f"{name.removeprefix('fault ')} {count}" for name, count in sorted(faults.items())))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
