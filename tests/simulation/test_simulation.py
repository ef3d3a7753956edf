"""Edge and Nodes by seed: whatever the network, the processes and the runtimes do, I1 to I13 hold (reliability.md).

`IOP_SEED=17 pytest tests/simulation` plays one seed again, `IOP_SEEDS=200 …` plays fewer of them; `make simulate` plays
20 000 on all cores (`scripts/simulate.py`).
"""

from __future__ import annotations

import os
from collections import Counter

import pytest

from support.rules import rule
from support.sim.many import play
from support.sim.plan import FAULTS, Faults, calm
from support.sim.universe import Report, simulate
from support.sim.world import Violation

ONE = os.environ.get("IOP_SEED")
SEEDS = [int(ONE)] if ONE else list(range(int(os.environ.get("IOP_SEEDS", "2000"))))
only_with_many = pytest.mark.skipif(ONE is not None, reason="IOP_SEED plays a single seed")

SOMETIMES = {
    *(f"fault {name}" for name in FAULTS),
    "session-over lost",
    "session-over goodbye",
    "session-over silent",
    "session-over fenced",
    "session-over protocol",
    "session-over unresponsive",
    "node-over lost",
    "node-over silent",
    "node-over fenced",
    "node-over protocol",
    "node-over unresponsive",
    "config acked",
    "config nacked",
    "config no_answer",
    "suspect",
    "recovered",
    "draining",
    "stopping-ended",
    "no-credit",
    "queued",
    "terminal ok",
    "terminal node_lost",
    "terminal queue_full",
    "terminal queue_timeout",
    "terminal unavailable",
    "terminal upstream_error",
    "end node_lost",
    "end node_draining",
    "end cancelled",
    "built False",
}
"""What must happen in the ordinary seeds, or they prove less than they seem to."""


@pytest.fixture(scope="module")
def played() -> tuple[list[Report], list[Violation]]:
    """Every seed, once."""
    reports: list[Report] = []
    violations: list[Violation] = []
    for seed, outcome in play(SEEDS):
        if isinstance(outcome, str):
            rule_id, _, text = outcome.partition(": ")
            violations.append(Violation(rule_id, f"{text} (seed {seed})"))
        else:
            reports.append(outcome)
    return reports, violations


@rule("P8", "P4", "P9", "R7", "R8", "R14", "N4", "N6", "E7")
def test_no_seed_breaks_an_invariant(played: tuple[list[Report], list[Violation]]) -> None:
    _, violations = played
    if violations:
        raise violations[0]


@only_with_many
def test_the_seeds_show_everything_that_can_happen(played: tuple[list[Report], list[Violation]]) -> None:
    reports, _ = played
    events: Counter[str] = Counter()
    for report in reports:
        events.update(report.events)
    missing = {name for name in SOMETIMES if not any(event.startswith(name) for event in events)}
    assert missing == set()
    assert sum(report.steps for report in reports) > 1000 * len(reports)


@only_with_many
def test_a_seed_is_a_story_that_can_be_told_again() -> None:
    assert simulate(11).digest == simulate(11).digest
    assert simulate(11).digest != simulate(12).digest


@only_with_many
@rule("E1", "P4")
@pytest.mark.parametrize("seed", range(1000, 1012))
def test_without_faults_every_request_is_served_or_told_at_once_that_it_is_not(seed: int) -> None:
    quiet = calm(Faults(frozenset(), 4.0, 40, (0.0, 0.0), 64 * 1024))
    report = simulate(seed, quiet)
    assert set(report.clients) <= {"ok", "queue_full", "queue_timeout", "unavailable"}
    assert report.events["session-over lost"] == 0
