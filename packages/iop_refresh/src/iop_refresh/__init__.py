"""Compare two Edge configs: what changed, what may be applied while serving, what waits for a restart."""

from iop_refresh._plan import MIXED, Places, RefreshPlan, plan
from iop_refresh._result import (
    SCHEMA_VERSION,
    Change,
    ChangeKind,
    NodeResult,
    NodeState,
    RefreshResult,
    ResultProblem,
    Source,
    Status,
)

__all__ = [
    "MIXED",
    "SCHEMA_VERSION",
    "Change",
    "ChangeKind",
    "NodeResult",
    "NodeState",
    "Places",
    "RefreshPlan",
    "RefreshResult",
    "ResultProblem",
    "Source",
    "Status",
    "plan",
]
