"""Break the pool in named ways, and see that its tests notice each; writes tests/pool/mutants.md (`make mutants`).

    python scripts/pool_mutants.py [NAME...]

A mutant is a text of the sources and what stands there instead, in a copy that the tests import in place of the real
one. Exits 1 when one survives, or when its text is no longer there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from attrs import frozen

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "packages/iop_pool/src"
PAGE = ROOT / "tests/pool/mutants.md"
TESTS = ["tests/pool", "tests/properties/test_pool_machine.py"]


@frozen
class Mutant:
    """One change of the sources."""

    name: str
    rule: str
    file: str
    before: str
    after: str


MUTANTS = [
    Mutant("one run above the capacity", "P1", "_select.py", "if load < provider.limit and", "if load <= provider.limit and"),
    Mutant("one waiter above the capacity", "P1", "_core.py", "while self._lanes and len(provider.leases) < provider.limit:",
           "while self._lanes and len(provider.leases) <= provider.limit:"),
    Mutant("the load does not count", "P2", "_select.py", "key = provider.base + (load << RANK_BITS)", "key = provider.base"),
    Mutant("the rotation does not advance", "P2", "_core.py", "group.last = position = next_in_turn(tied, last)",
           "position = next_in_turn(tied, last)"),
    Mutant("the rotation steps over one", "P2", "_select.py", "ahead = mask >> (last + 1)", "ahead = mask >> (last + 2) << 1"),
    Mutant("a long slot is not returned", "P3", "_core.py", "        if lease.long:\n            provider.long_leases.remove(lease)\n", ""),
    Mutant("a long run takes no long slot", "P3", "_core.py", "        if lease.long:\n            provider.long_leases.add(lease)\n", ""),
    Mutant("the threshold itself is not long", "P3", "_core.py", "long = request.input_tokens >= self._threshold\n        roster",
           "long = request.input_tokens > self._threshold\n        roster"),
    Mutant("a newcomer overtakes", "P4", "_core.py", "arrival = number if request.arrival is None else request.arrival",
           "arrival = -number if request.arrival is None else request.arrival"),
    Mutant("the lane that arrived first is not the first", "P4", "_core.py",
           "if first is None or waiter.order < first.order:", "if first is None or waiter.order > first.order:"),
    Mutant("a waiter for a long slot blocks the others", "P4", "_core.py",
           "if (lane.long and not long_free) or provider.id in lane.exclude:\n                    continue",
           "if lane.long and not long_free:\n                    break\n                if provider.id in lane.exclude:\n"
           "                    continue"),
    Mutant("an excluded provider is offered", "E7", "_core.py", "(lane.long and not long_free) or provider.id in lane.exclude",
           "(lane.long and not long_free)"),
    Mutant("a lost node is not waited for", "P5", "_slots.py",
           "return self.state is not ConnectionState.DISCONNECTED or self.wake_at is not None",
           "return self.state is not ConnectionState.DISCONNECTED"),
    Mutant("one waiter above the bound", "P6", "_core.py", "if len(group.waiters) >= prospects.bound(exclude):",
           "if len(group.waiters) > prospects.bound(exclude):"),
    Mutant("the shortest timeout counts", "P7", "_groups.py", "return max(known) if", "return min(known) if"),
    Mutant("a timeout begins anew with each config", "P7", "_core.py",
           "[waiter.queued_at + timeout_ms / 1000]", "[max(waiter.deadline or 0, waiter.queued_at) + timeout_ms / 1000]"),
    Mutant("a second release counts", "P8", "_core.py", "        if lease.state is LeaseState.FREE:\n            return ()\n", ""),
    Mutant("a cancelled waiter keeps its slot", "P8", "_core.py",
           "            return self.release(waiter.lease, Outcome.CANCELLED, now)\n", "            return ()\n"),
    Mutant("a cancelling run frees its slot", "P8", "_core.py", "            lease.state = LeaseState.CANCELLING\n",
           "            lease.state = LeaseState.CANCELLING\n            lease._provider.leases.discard(lease)\n"),
    Mutant("a raised capacity wakes nobody", "P9", "_core.py",
           "                decisions.append(self._refuse_hopeless(waiter))\n        decisions += self._dispatch(now)\n",
           "                decisions.append(self._refuse_hopeless(waiter))\n"),
    Mutant("a release wakes nobody", "P4", "_core.py", "return self._offer(provider, now) if self._lanes else ()", "return ()"),
    Mutant("the face loses a wake-up", "P4", "_shell.py", "                wait.event.set()\n                if isinstance",
           "                if isinstance"),
    Mutant("nobody keeps the time any more", "P7", "_shell.py",
           "            if self._keeper is wait:\n                self._appoint_keeper()", "            pass"),
    Mutant("a cancelled task loses its grant", "P8", "_shell.py",
           "            self._deliver(self.core.cancel(waiter, self._clock()))\n", ""),
    Mutant("a busy provider is ejected", "P14", "_health.py", "if outcome is Outcome.BROKEN:", "if outcome in (Outcome.BROKEN, Outcome.BUSY):"),
    Mutant("failures need not be consecutive", "P14", "_health.py", "    def _close(self, now: float) -> None:\n        self.failures = 0\n",
           "    def _close(self, now: float) -> None:\n"),
    Mutant("the backoff does not grow", "P10", "_health.py", "self._backoffs = min(self._backoffs + 1, _EXPONENT_MAX)", "self._backoffs = 0"),
    Mutant("two trials at a time", "P10", "_core.py", "            provider.trial = lease\n            provider.refresh()\n", "            provider.refresh()\n"),
    Mutant("degraded ones are not last", "P10", "_slots.py", "rank | (DEGRADED_TIER if health.level is Health.DEGRADED else 0)", "rank"),
    Mutant("the smaller capacity does not count", "R14", "_slots.py",
           "return capacity if self.limits is None else min(capacity, self.limits.capacity)", "return capacity"),
]  # fmt: skip


def killed_by(mutant: Mutant) -> str | None:
    """Return the test that fails with the mutant, None where it survives; ValueError for a text that is not there."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "src"
        shutil.copytree(SOURCES, copy, ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
        file = copy / "iop_pool" / mutant.file
        text = file.read_text(encoding="utf-8")
        if text.count(mutant.before) != 1:
            raise ValueError(f"{mutant.name}: its text is in {mutant.file} {text.count(mutant.before)} times")
        file.write_text(text.replace(mutant.before, mutant.after), encoding="utf-8")
        env = {**os.environ, "PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1", "IOP_EXAMPLES": "200"}
        # The first failure is enough, and shrinking it is of no use here.
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-x",
            "-q",
            "--no-header",
            "--tb=no",
            "-p",
            "no:cacheprovider",
            *TESTS,
        ]
        try:
            done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=240, check=False)
        except subprocess.TimeoutExpired:
            return "the suite, by never ending"
    if done.returncode == 0:
        return None
    found = re.search(r"^(?:FAILED|ERROR) (\S+::\S+)", done.stdout, flags=re.MULTILINE)
    if found is None:
        raise ValueError(f"{mutant.name}: no test failed, but the suite did:\n{done.stdout[-2000:]}")
    return found[1]


def page(results: list[tuple[Mutant, str]]) -> str:
    """The table."""
    rows = "".join(f"| {mutant.name} | {mutant.rule} | `{mutant.file}` | `{killer}` |\n" for mutant, killer in results)
    return (
        "# Mutants of the pool\n\n"
        "Written by `make mutants`: each is applied to a copy of the sources, and the suite must notice. The test is the first that failed.\n\n"
        f"| what is broken | rule | where | noticed by |\n|---|---|---|---|\n{rows}"
    )


def main() -> int:
    """Run all, or those that are named; only a whole run writes the page."""
    names = sys.argv[1:]
    chosen = [mutant for mutant in MUTANTS if not names or mutant.name in names]
    results, survivors = [], 0
    for mutant in chosen:
        killer = killed_by(mutant)
        print(f"{'SURVIVED' if killer is None else 'noticed '}  {mutant.name:48} {killer or ''}", flush=True)
        survivors += killer is None
        results.append((mutant, killer or "nothing: it survives"))
    if not names:
        PAGE.write_text(page(results), encoding="utf-8")
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
