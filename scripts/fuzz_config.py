"""Throw 10 000 broken files at the loader: never a traceback, never over 1 s or 256 MiB (`make fuzz`; C18, C19).

    python scripts/fuzz_config.py [--runs N] [--seed N]

Each text is one of the repository's configs with a few of its bytes, lines or words changed, or one of the known bombs.
Exits 1 with the offending text in `fuzz-failure.yaml` at the first that gets anything but a config
or problems.
"""

from __future__ import annotations

import argparse
import random
import resource
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

import iop_config
from iop_config import ConfigError

ROOT = Path(__file__).resolve().parent.parent
SECONDS_MAX = 1.0
MIB_MAX = 256
WORDS = [
    *(
        b"{",
        b"}",
        b"[",
        b"]",
        b":",
        b": ",
        b"- ",
        b"\t",
        b"\r\n",
        b"\n",
        b"\n  ",
        b"\n\n      ",
        b"? ",
        b"---\n",
        b"...\n",
    ),
    *(b"\x00", b"\xef\xbb\xbf", b"\xff", b"\xe2\x80\xa8", b"@", b"`", b"#", b"'", b'"', b"|", b">-", b"%YAML 1.1\n"),
    *(b"&a ", b"*a", b"<<: *a", b"!!int ", b"!x ", b"${X}", b"${X:-", b"${file:/}", b"$$"),
    *(b"~", b"null", b"yes", b"0x1f", b"1_000", b"1e9", b".inf", b"9" * 5000),
]


def bombs() -> list[bytes]:
    """What is small on paper, or is known to hurt a parser."""
    laughs = b"a: &a [x, x, x, x, x, x, x, x, x]\n" + b"".join(
        b"%c: &%c [%s]\n" % (name, name, b", ".join([b"*%c" % (name - 1)] * 9)) for name in range(ord("b"), ord("k"))
    )
    return [
        laughs,
        b"[" * 1500 + b"]" * 1500,
        b"{a: " * 1500 + b"1" + b"}" * 1500,
        b"{a: " * 100_000,
        b"- " * 50_000,
        b"long_context_threshold_tokens: " + b"9" * 5000,
        b"edge: {id: " + b"x" * 1_000_000 + b"}",
        b"edge: {id: e}\n" + b"k: v\n" * 100_000,
        "edge: {id: e}\n".encode("utf-16"),
        "edge: {id: e}\n".encode("utf-32"),
        b"\xef\xbb\xbfedge: {id: e}\r\n",
        b"edge: {id: \x00}",
        b"\x00" * 100_000,
        b"a: &a {<<: *a}",
        b"? " * 10_000,
        b"'" * 100_000,
        b"#" * 1_000_000,
        b"x: ${" * 50_000,
        b"${A:-" * 50_000 + b"}" * 50_000,
        b"&a " * 50_000,
        b"!!int " * 50_000,
    ]


def mutated(seeds: Sequence[bytes], chance: random.Random) -> bytes:
    """One to four changes to one of the seeds."""
    text = bytearray(chance.choice(seeds))
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(text) + 1)
        match chance.randrange(7):
            case 0:
                del text[at : at + chance.randint(1, 8)]
            case 1:
                text[at:at] = chance.choice(WORDS)
            case 2:
                text[at : at + 1] = bytes([chance.randrange(256)])
            case 3:
                lines = text.splitlines(keepends=True)
                del lines[chance.randrange(len(lines)) if lines else 0 :][:1]
                text = bytearray(b"".join(lines))
            case 4:
                lines = text.splitlines(keepends=True) or [bytearray()]
                lines.insert(chance.randrange(len(lines)), chance.choice(lines))
                text = bytearray(b"".join(lines))
            case 5:
                text = text[:at]
            case _:
                other = chance.choice(seeds)
                start = chance.randrange(len(other))
                text[at:at] = other[start : start + chance.randint(1, 200)]
    return bytes(text)


def judge(text: bytes) -> str:
    """`loaded` or `problems`; raises for everything else. What is said is looked at too, as a user would."""
    try:
        loaded = iop_config.load_text(text, env={"X": "word"}, digest_key=b"fuzz")
    except ConfigError as error:
        if not error.problems:
            raise AssertionError("refused without a problem") from None
        for problem in error.problems:
            if problem.line < 1 or problem.column < 1 or not str(problem).isprintable():
                raise AssertionError(f"not a place or not printable: {problem!r}") from None
        return "problems"
    iop_config.to_yaml(iop_config.to_plain(loaded.config))
    return "loaded"


def main() -> int:
    """Run, print the figures, exit 1 at the first failure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=10_000, help="texts to try (10000)")
    parser.add_argument("--seed", type=int, default=1, help="of the mutations (1)")
    given = parser.parse_args()
    chance = random.Random(given.seed)
    seeds = [
        path.read_bytes()
        for path in (*sorted((ROOT / "configs").glob("*.yaml")), *(ROOT / "tests/config/bad").glob("*.yaml"))
    ]
    known = bombs()
    results = {"loaded": 0, "problems": 0}
    slowest = 0.0
    for run in range(given.runs):
        text = known[run] if run < len(known) else mutated(seeds, chance)
        began = time.perf_counter()
        try:
            results[judge(text)] += 1
        except BaseException:
            (Path.cwd() / "fuzz-failure.yaml").write_bytes(text)
            traceback.print_exc()
            print(f"run {run} of seed {given.seed}: the text is in fuzz-failure.yaml")
            return 1
        took = time.perf_counter() - began
        if took > slowest:
            slowest = took
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(f"{given.runs} texts: {results['loaded']} loaded, {results['problems']} told what is wrong; "
          f"slowest {slowest:.3f} s of {SECONDS_MAX}, peak {peak:.0f} MiB of {MIB_MAX}")  # fmt: skip
    return int(slowest > SECONDS_MAX or peak > MIB_MAX)


if __name__ == "__main__":
    sys.exit(main())
