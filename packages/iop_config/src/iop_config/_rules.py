"""Rules that cross places, a short function each, over the normalised, structured config (C3-C17, C24, C25, R12)."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from iop_config._model import EdgeConfig
from iop_config._problems import Finding
from iop_config._rules_listeners import c25_addresses, c25_plaintext, r12_admin
from iop_config._rules_models import c3_a2a_model, c12_groups, c12_long_slots, c13_generation, c14_hashes, c16_routes
from iop_config._rules_providers import c4_providers, c5_unique, c7_adapter, c10_lives_on
from iop_config._view import At, View

_RULES: tuple[Callable[[View], Iterator[Finding]], ...] = (
    c3_a2a_model,
    c4_providers,
    c5_unique,
    c7_adapter,
    c10_lives_on,
    c12_long_slots,
    c12_groups,
    c13_generation,
    c14_hashes,
    c16_routes,
    c25_plaintext,
    c25_addresses,
    r12_admin,
)


def check(config: EdgeConfig, at: At) -> Iterator[Finding]:
    """Yield what breaks a rule that crosses places; `at` words the place of a path as file:line:column (C19).

    Costs one pass over the config per rule.
    """
    view = View(config, at)
    for rule in _RULES:
        yield from rule(view)


__all__ = ["check"]
