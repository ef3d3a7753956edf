"""Take one rule after another out of the production code and see that the simulation notices (reliability.md)."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.sim.mutants import MUTANTS, Mutant  # noqa: E402
from support.sim.universe import simulate  # noqa: E402
from support.sim.world import Violation  # noqa: E402


def hunt(mutant: Mutant, seeds: int) -> tuple[int, str] | None:
    """Return the first seed that catches the mutant, and how; None when none of them does."""
    with mutant.alive():
        for seed in range(seeds):
            try:
                simulate(seed)
            except Violation as violation:
                return seed, str(violation)
            except Exception as error:
                return seed, f"{type(error).__name__}: {error}"
    return None


def main() -> int:
    """Print a line per mutant; exit 1 when one survives."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=300, help="seeds to try per mutant (300)")
    parser.add_argument("names", nargs="*", help="mutants to run (all)")
    given = parser.parse_args()
    survivors = []
    for mutant in MUTANTS:
        if given.names and mutant.name not in given.names:
            continue
        began = time.perf_counter()
        caught = hunt(mutant, given.seeds)
        took = time.perf_counter() - began
        if caught is None:
            survivors.append(mutant.name)
            print(f"SURVIVED  {mutant.name:34} {took:5.1f} s", flush=True)
        else:
            seed, how = caught
            print(f"caught    {mutant.name:34} {took:5.1f} s  seed {seed:3}  {how[:100]}", flush=True)
    return 1 if survivors else 0


if __name__ == "__main__":
    raise SystemExit(main())
