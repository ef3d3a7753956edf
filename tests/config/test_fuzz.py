"""Hundreds of broken files and every known bomb, each answered by a config or by problems (C18, C19; `make fuzz`)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import fuzz_config
from support.rules import rule

ROOT = Path(__file__).resolve().parents[2]

SEEDS = [path.read_bytes() for path in sorted((ROOT / "configs").glob("*.yaml"))]


@rule("C18")
@pytest.mark.parametrize("number", range(len(fuzz_config.bombs())))
def test_a_bomb_is_refused_or_loaded_like_any_other_file(number: int) -> None:
    assert fuzz_config.judge(fuzz_config.bombs()[number]) in ("problems", "loaded")


@rule("C18", "C19")
@pytest.mark.parametrize("seed", range(4))
def test_a_broken_file_is_told_never_thrown(seed: int) -> None:
    chance = random.Random(seed)
    results = [fuzz_config.judge(fuzz_config.mutated(SEEDS, chance)) for _ in range(75)]
    assert "problems" in results
