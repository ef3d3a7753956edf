"""`@rule("P4", "P7")`: which product rules a test proves; test_rules.py compares these with docs/rules.md."""

import pytest


def rule(*ids: str) -> pytest.MarkDecorator:
    """Mark a test as the proof of the rules with these ids."""
    return pytest.mark.rule(*ids)
