"""What loading costs at 10, 1 000 and 10 000 providers, beside plain ruamel.yaml safe loading as the floor (C18).

    python bench/config_load.py [--repeat N] [--json]

The floor is `YAML(typ="safe")` with the C parser, of the same text: a dict, nothing checked, no positions. The goal is
at most 1.5 times the floor at every size, and growth linear in the file. Medians; the two take turns, so that a noisy
machine hits both.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable

from ruamel.yaml import YAML

import iop_config

SIZES = (10, 1_000, 10_000)
GOAL = 1.5
PER_NODE = 10
MODELS = 50
HASH = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae"


def config_text(providers: int) -> str:
    """Return a valid config with so many providers: ten to a node, eight keys each, fifty models."""
    lines = ["edge: {id: bench}", "models:"]
    models = min(MODELS, providers)
    for model in range(models):
        lines += [f"  - id: model-{model}", "    context_window_tokens: 32768", "    providers:"]
        lines += [f"      p-{number}: served-{model}" for number in range(model, providers, models)]
    lines.append("nodes:")
    for number in range(providers):
        if number % PER_NODE == 0:
            lines += [f"  - id: node-{number // PER_NODE}", f"    token_hash_sha256: {HASH}", "    adapters:"]
            lines += ["      - name: runtime", "        type: vllm", "        base_url: http://127.0.0.1:8000/v1"]
            lines.append("    providers:")
        lines += [
            f"      - id: p-{number}",
            "        type: vllm",
            "        category: local_inference",
            "        adapter: runtime",
            f"        models: [served-{number % models}]",
            "        capacity: 4",
            "        priority: 1",
            "        max_queue: 16",
        ]
    return "\n".join(lines) + "\n"


def seconds(work: Callable[[], object]) -> float:
    """Return how long one call takes."""
    start = time.perf_counter()
    made = work()
    taken = time.perf_counter() - start
    del made
    return taken


def measure(providers: int, repeat: int) -> dict[str, float]:
    """Return the median times of the load and of its floor, and their ratio."""
    text = config_text(providers)
    loads, floors = [], []
    for _ in range(repeat):
        floors.append(seconds(lambda: YAML(typ="safe").load(text)))
        loads.append(seconds(lambda: iop_config.load_text(text, env={})))
    load, floor = statistics.median(loads), statistics.median(floors)
    return {
        "providers": providers,
        "bytes": len(text),
        "load_ms": load * 1000,
        "floor_ms": floor * 1000,
        "ratio": load / floor,
        "load_us_per_provider": load / providers * 1e6,
    }


def main() -> int:
    """Print a line per size; 1 where the goal is missed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repeat", type=int, default=5, help="runs per size, of which the median counts")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    options = parser.parse_args()
    missed = False
    for providers in SIZES:
        row = measure(providers, options.repeat)
        missed |= row["ratio"] > GOAL
        if options.json:
            print(json.dumps(row))
        else:
            print(
                f"{providers:>6} providers  {row['bytes'] / 1024:>7.0f} KiB  load {row['load_ms']:>8.1f} ms  "
                f"floor {row['floor_ms']:>8.1f} ms  ratio {row['ratio']:.2f}  {row['load_us_per_provider']:.0f} µs each"
            )
    if missed:
        print(f"the goal of {GOAL} times the floor is missed", file=sys.stderr)
    return int(missed)


if __name__ == "__main__":
    sys.exit(main())
