"""What a refresh would do: identity diff, policy from the field, partial apply; `§10 n` is a case of refresh.md §10."""

from __future__ import annotations

import pytest

import iop_config
import iop_refresh
from iop_config import EdgeConfig, Policy, walk_fields
from iop_refresh import Change, ChangeKind, RefreshPlan, Status
from support.edits import CONFIG, KEY, edited, load, plan_of
from support.rules import rule

CAPACITY = ("capacity: 4", "capacity: 5")
LINE_A = next(line for line in CONFIG.splitlines(keepends=True) if "id: a," in line)
LISTEN = ('openai:\n  listen: "127.0.0.1:0"', 'openai:\n  listen: "127.0.0.1:1"')


def kinds(plan: RefreshPlan) -> list[tuple[str, str, str]]:
    return sorted((change.path, change.kind.value, change.policy) for change in plan.changes)


# -- what is live (R2, R3) --------------------------------------------------------------------------------------------

LIVE = {
    "long_context_threshold_tokens",
    *(
        f"nodes[].providers[].{name}"
        for name in (
            "capacity",
            "long_context_capacity",
            "total_context_tokens",
            "priority",
            "max_queue",
            "queue_timeout_ms",
            "enabled",
        )
    ),
    *(
        f"models[].{name}"
        for name in (
            "display_name",
            "context_window_tokens",
            "providers",
            "default_max_tokens",
            "min_max_tokens",
            "default_thinking_token_budget",
        )
    ),
    "nodes[].runtime.concurrency",
}


@rule("R2", "R3", "C22")
def test_exactly_the_fields_of_r2_are_live_and_every_other_one_waits_for_a_restart() -> None:
    leaves = {path: info for path, info in walk_fields(EdgeConfig) if info.policy in (Policy.LIVE, Policy.RESTART)}
    assert {path for path, info in leaves.items() if info.policy is Policy.LIVE} == LIVE
    members = {path: info.members_policy for path, info in walk_fields(EdgeConfig) if info.key is not None}
    assert [path for path, policy in members.items() if policy is Policy.LIVE] == ["models"]


@rule("R2", "R6")
@pytest.mark.parametrize(
    ("edit", "path"),
    [
        (("threshold_tokens: 1000", "threshold_tokens: 2000"), "long_context_threshold_tokens"),
        (CAPACITY, "nodes[n1].providers[a].capacity"),
        (("max_queue: 8", "max_queue: 0"), "nodes[n1].providers[a].max_queue"),
        (("max_queue: 8", "max_queue: 8, queue_timeout_ms: 0"), "nodes[n1].providers[a].queue_timeout_ms"),
        (("max_queue: 8", "max_queue: 8, priority: 3"), "nodes[n1].providers[a].priority"),
        (("max_queue: 8", "max_queue: 8, enabled: false"), "nodes[n1].providers[a].enabled"),
        (("max_queue: 8", "max_queue: 8, long_context_capacity: 0"), "nodes[n1].providers[a].long_context_capacity"),
        (("max_queue: 8", "max_queue: 8, total_context_tokens: 99999"), "nodes[n1].providers[a].total_context_tokens"),
        (("{a: served, b: served}", "{a: served}"), "models[big].providers"),
        (("window_tokens: 4096", "window_tokens: 4097"), "models[big].context_window_tokens"),
        (("window_tokens: 4096", "window_tokens: 4096\n    display_name: Big"), "models[big].display_name"),
        (("window_tokens: 4096", "window_tokens: 4096\n    default_max_tokens: 9"), "models[big].default_max_tokens"),
    ],
)
def test_a_live_field_is_applied(edit: tuple[str, str], path: str) -> None:
    plan = plan_of(edited(edit))
    assert (plan.status, plan.changed, plan.live_applied) == (Status.APPLIED, True, True)
    assert kinds(plan) == [(path, "changed", "live")]
    assert plan.live_paths == {path}
    assert plan.restart_required_paths == plan.pending_restart_paths == frozenset()
    assert plan.effective == load(edited(edit)).config


@rule("R3", "R5", "R6")
@pytest.mark.parametrize(
    ("edit", "path"),
    [
        (("{id: e}", "{id: e2}"), "edge.id"),
        (LISTEN, "openai.listen"),
        (("principal_ref: us", "principal_ref: them"), "openai.principal_tokens[ide].principal_ref"),
        (('server: {listen: "127.0.0.1:0"}', 'server: {listen: "127.0.0.1:1"}'), "server.listen"),
        (('admin: {listen: "127.0.0.1:0"}', 'admin: {listen: "127.0.0.1:1"}'), "admin.listen"),
        (("edge: {id: e}", "edge: {id: e}\nlogging: {level: debug}"), "logging.level"),
        (("edge: {id: e}", 'edge: {id: e}\nmetrics: {listen: "127.0.0.1:9"}'), "metrics.listen"),
        (("id: n1", "id: n1\n    alias: rack"), "nodes[n1].alias"),
        (("id: n1", "id: n1\n    agent_kind: gpu"), "nodes[n1].agent_kind"),
        (("127.0.0.1:8000/v1", "127.0.0.1:8001/v1"), "nodes[n1].adapters[main].base_url"),
        (("Bearer canary-one", "Bearer canary-two"), "nodes[n1].adapters[main].headers"),
        (("http://127.0.0.1:8090", "http://127.0.0.1:8091"), "nodes[n2].providers[b].base_url"),
        (("max_queue: 8", "max_queue: 8, health: {interval_ms: 100}"), "nodes[n1].providers[a].health.interval_ms"),
        (("max_queue: 8", "max_queue: 8, lifecycle: [start]"), "nodes[n1].providers[a].lifecycle"),
        (("capacity: 2", "capacity: 2\n        request_timeout_ms: 9"), "nodes[n2].providers[b].request_timeout_ms"),
    ],
)
def test_what_needs_a_restart_changes_nothing(edit: tuple[str, str], path: str) -> None:
    for allow_partial in (False, True):
        plan = plan_of(edited(edit), allow_partial=allow_partial)
        assert (plan.status, plan.changed, plan.live_applied) == (Status.RESTART_REQUIRED, True, False)
        assert kinds(plan) == [(path, "changed", "restart")]
        assert plan.restart_required_paths == plan.pending_restart_paths == {path}
        assert plan.effective is None


# -- identity, not position (R10) -------------------------------------------------------------------------------------


@rule("R10", "R4")
@pytest.mark.parametrize(
    "edits",
    [
        [("    providers: {a: served, b: served}", "    providers: {b: served, a: served}")],
        [("{id: a, type: vllm, category: local_inference,", "{category: local_inference, id: a, type: vllm,")],
        [("capacity: 2", "capacity: 2\n        priority: 0\n        enabled: true")],
        [("capacity: 2", "capacity: 2  # two are enough")],
        [("id: small", 'id: "small"')],
        [("models: [served]\n        capacity: 2", "models:\n          - served\n        capacity: 2")],
        [("  - id: big\n", "  - &big\n    id: big\n")],
    ],
)
def test_order_spelling_and_spelled_out_defaults_are_no_change(edits: list[tuple[str, str]]) -> None:
    """§10 3, 4, 5."""
    plan = plan_of(edited(*edits))
    assert (plan.status, plan.changed, plan.live_applied) == (Status.APPLIED, False, False)
    assert plan.changes == ()
    # The proposed config is in force all the same: what only the rotation knows, the new order, comes with it.
    assert plan.effective is not None
    order = list(load(edited(*edits)).config.models[0].providers)
    assert list(plan.effective.models[0].providers) == order


@rule("R10")
def test_models_and_nodes_in_another_order_are_no_change() -> None:
    """§10 3."""
    head, models = CONFIG.split("models:\n")
    models, nodes = models.split("nodes:\n")
    first, second = models.split("  - id: small")
    node_1, node_2 = nodes.split("  - id: n2")
    swapped = f"{head}models:\n  - id: small{second}{first}nodes:\n  - id: n2{node_2}{node_1}"
    assert swapped != CONFIG
    assert not plan_of(swapped).changed


@rule("R10")
def test_one_anchor_used_by_five_providers_is_five_changes_at_their_own_lines() -> None:
    """§10 6."""
    provider = "      - {id: x%d, type: echo, category: local_inference, models: [served], capacity: *c}\n"
    five = "".join(provider % number for number in range(5)).replace("*c", "&c 3", 1)
    running = CONFIG + five
    plan = plan_of(running.replace("&c 3", "&c 4"), running)
    start = CONFIG.count("\n") + 1
    assert [(change.path, change.line, change.before, change.after) for change in plan.changes] == [
        (f"nodes[n2].providers[x{number}].capacity", start + number, "3", "4") for number in range(5)
    ]


@rule("R3", "R5", "R10")
def test_a_provider_that_moved_is_one_change_on_both_nodes_and_stays_where_it_is() -> None:
    """§10 1."""
    line = LINE_A
    free = "      - {id: c, type: echo, category: local_inference, models: [served]}\n"
    to = line.replace("type: vllm", "type: echo").replace(" adapter: main,", "").replace("capacity: 4", "capacity: 9")
    moved = edited((line, free)) + to
    plan = plan_of(moved, edited((line, line + free)), allow_partial=True)
    assert plan.status is Status.RESTART_REQUIRED
    (change,) = [change for change in plan.changes if change.kind is ChangeKind.MOVED]
    assert (change.path, change.policy) == ("nodes[n2].providers[a]", "restart")
    assert (change.before, change.after) == ("nodes[n1]", "nodes[n2]")
    assert plan.changed_nodes == {"n1", "n2"}
    assert plan.changed_providers == {"a"}
    assert not plan.live_applied
    # Its capacity is live, but belongs to the provider in its new place.
    assert {"nodes[n2].providers[a]", "nodes[n2].providers[a].capacity"} <= plan.pending_restart_paths


@rule("R3", "R5", "R10")
def test_a_renamed_provider_is_another_one() -> None:
    """§10 2."""
    renamed = edited(
        ("- id: b\n", "- id: c\n"), ("{b: served}", "{c: served}"), ("{a: served, b: served}", "{a: served}")
    )
    plan = plan_of(renamed)
    assert plan.status is Status.RESTART_REQUIRED
    assert [(c.path, c.kind.value) for c in plan.changes if c.policy == "restart"] == [
        ("nodes[n2].providers[b]", "removed"),
        ("nodes[n2].providers[c]", "added"),
    ]
    assert plan.changed_providers == {"b", "c"}


@rule("R3", "R5")
def test_a_file_that_lost_providers_takes_none_away_while_serving() -> None:
    """§10 18."""
    lost = edited(
        (
            LINE_A,
            "      []\n",
        ),
        ("{a: served, b: served}", "{b: served}"),
    ).replace("    providers:\n      []", "    providers: []")
    assert plan_of(lost).effective is None
    plan = plan_of(lost, allow_partial=True)
    assert plan.pending_restart_paths == {"nodes[n1].providers[a]"}
    assert plan.live_paths == {"models[big].providers"}
    assert plan.effective is not None
    assert [provider.id for node in plan.effective.nodes for provider in node.providers] == ["a", "b"]
    assert list(plan.effective.models[0].providers) == ["b"]


@rule("R3")
def test_a_node_added_or_removed_waits_for_a_restart() -> None:
    """§10 30."""
    node = "  - {id: n3, token_hash_sha256: 1c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae}\n"
    added, removed = plan_of(CONFIG + node), plan_of(CONFIG, CONFIG + node)
    assert kinds(added) == [("nodes[n3]", "added", "restart")]
    assert kinds(removed) == [("nodes[n3]", "removed", "restart")]
    assert added.changed_nodes == removed.changed_nodes == {"n3"}


@rule("R2")
def test_a_model_comes_and_goes_live() -> None:
    more = "  - {id: new, providers: {a: served}}\n"
    text = edited(("  - id: small\n", more + "  - id: small\n"))
    added, removed = plan_of(text), plan_of(CONFIG, text)
    assert kinds(added) == [("models[new]", "added", "live")]
    assert kinds(removed) == [("models[new]", "removed", "live")]
    assert added.changed_models == {"new"}
    assert added.effective is not None
    assert [model.id for model in added.effective.models] == ["big", "new", "small"]


# -- partly (R5) ------------------------------------------------------------------------------------------------------


@rule("R5")
def test_by_default_a_restart_keeps_the_live_changes_out_and_with_partial_they_are_applied() -> None:
    text = edited(CAPACITY, LISTEN)
    plan = plan_of(text)
    assert (plan.status, plan.live_applied, plan.effective) == (Status.RESTART_REQUIRED, False, None)
    assert plan.live_paths == {"nodes[n1].providers[a].capacity"}
    plan = plan_of(text, allow_partial=True)
    assert (plan.status, plan.live_applied) == (Status.RESTART_REQUIRED, True)
    assert plan.pending_restart_paths == {"openai.listen"}
    assert plan.effective == load(edited(CAPACITY)).config


@rule("R5")
def test_an_object_that_waits_keeps_its_own_live_changes_back() -> None:
    # The capacity is for the new endpoint, which is written on the provider itself.
    text = edited(("http://127.0.0.1:8090", "http://127.0.0.1:8091"), ("capacity: 2", "capacity: 3"), CAPACITY)
    plan = plan_of(text, allow_partial=True)
    assert plan.pending_restart_paths == {"nodes[n2].providers[b].base_url", "nodes[n2].providers[b].capacity"}
    assert plan.effective == load(edited(CAPACITY)).config


@rule("R5")
def test_an_adapter_instance_is_an_object_of_its_own() -> None:
    text = edited(("127.0.0.1:8000/v1", "127.0.0.1:8001/v1"), CAPACITY)
    plan = plan_of(text, allow_partial=True)
    assert plan.pending_restart_paths == {"nodes[n1].adapters[main].base_url"}
    assert plan.effective == load(edited(CAPACITY)).config


@rule("R5")
def test_a_node_that_waits_does_not_hold_its_providers() -> None:
    text = edited(("id: n1", "id: n1\n    alias: rack\n    runtime: {concurrency: 3}"), CAPACITY)
    plan = plan_of(text, allow_partial=True)
    assert plan.pending_restart_paths == {"nodes[n1].alias", "nodes[n1].runtime.concurrency"}
    assert plan.effective == load(edited(CAPACITY)).config


@rule("R5")
def test_a_live_change_that_needs_a_pending_one_is_rejected_naming_both() -> None:
    """§10 33."""
    text = edited(("{b: served}\nnodes", "{b: served, c: served}\nnodes"), LISTEN)
    text += "      - {id: c, type: echo, category: local_inference, models: [served]}\n"
    plan = plan_of(text, allow_partial=True)
    assert (plan.status, plan.live_applied, plan.effective) == (Status.REJECTED, False, None)
    (problem,) = plan.problems
    assert (problem.code, problem.path) == (iop_refresh.MIXED, "models[small].providers")
    assert "models[small].providers" in problem.message
    assert "nodes[n2].providers[c]" in problem.message
    assert problem.line == load(text).position(("models", "small", "providers")).line
    # What may wait without harm is not blamed.
    assert "openai.listen" not in problem.message


@rule("R5")
def test_the_live_change_is_named_where_the_rule_stands_elsewhere() -> None:
    # C12 speaks of the provider's budget; what was changed live is the model's window.
    roomy = edited(("max_queue: 8", "max_queue: 8, total_context_tokens: 20000"))
    text = roomy.replace("context_window_tokens: 4096", "context_window_tokens: 8192")
    text = text.replace("id: n1", "id: n1\n    alias: rack").replace(
        "total_context_tokens: 20000", "total_context_tokens: 40000"
    )
    text = text.replace("models: [served], capacity: 4", "models: [served, more], capacity: 4")
    plan = plan_of(text, roomy, allow_partial=True)
    (problem,) = plan.problems
    assert problem.code == iop_refresh.MIXED
    assert "models[big].context_window_tokens" in problem.message
    assert "nodes[n1].providers[a].total_context_tokens" in problem.message


# -- how it reads -----------------------------------------------------------------------------------------------------


@rule("C1", "C23", "R6")
def test_a_changed_secret_shows_that_it_changed_and_nothing_else() -> None:
    """§10 11."""
    running = edited(("Bearer canary-one", "Bearer ${TOKEN}"))
    old, new = load(running, {"TOKEN": "canary-1"}), load(running, {"TOKEN": "canary-2"})
    plan = iop_refresh.plan(old.config, new.config, fingerprint_key=KEY, places=new)
    (change,) = plan.changes
    assert (change.path, change.policy) == ("nodes[n1].adapters[main].headers", "restart")
    assert change.before != change.after
    assert change.before.startswith("{Authorization: <redacted> #")
    assert "canary" not in str(plan)
    again = iop_refresh.plan(old.config, new.config, fingerprint_key=b"o" * 32, places=new)
    assert again.changes[0].before != change.before  # nobody without the key can compare with a guess


@rule("C21", "R10")
def test_a_secret_from_another_place_with_the_same_value_is_no_change() -> None:
    """§10 12."""
    running = edited(("Bearer canary-one", "${FIRST}"))
    moved = edited(("Bearer canary-one", "${SECOND}"))
    plan = plan_of(moved, running, env={"FIRST": "canary", "SECOND": "canary"})
    assert not plan.changed


@rule("C23")
def test_an_address_is_shown_without_its_user_and_its_query() -> None:
    text = edited(("http://127.0.0.1:8090/v1", "http://me:canary@127.0.0.1:8090/v1?key=canary"))
    try:
        shown = str(plan_of(text).changes)
    except iop_config.ConfigError as error:  # an address with a password in it may be refused, but not repeated
        shown = str(error)
    assert "canary" not in shown


def test_of_a_mapping_only_the_entries_that_differ_are_shown() -> None:
    (change,) = plan_of(edited(("{a: served, b: served}", "{a: served}"))).changes
    assert (change.before, change.after) == ("{b: served}", "{}")


@rule("R6")
def test_places_are_those_of_the_proposed_file() -> None:
    text = edited(("edge: {id: e}", "# a line more\nedge: {id: e}"), CAPACITY)
    (change,) = plan_of(text).changes
    position = load(text).position(("nodes", "n1", "providers", "a", "capacity"))
    assert (change.line, change.column) == (position.line, position.column)


def test_an_identity_that_could_be_misread_stands_in_quotes() -> None:
    text = edited(("  - id: small\n", '  - id: "a[0].b"\n'))
    more = text.replace("providers: {b: served}", "providers: {b: served}\n    display_name: x")
    assert [change.path for change in plan_of(more, text).changes] == ['models["a[0].b"].display_name']


def test_without_places_paths_read_the_same() -> None:
    new = load(edited(("http://127.0.0.1:8090", "http://127.0.0.1:8091")))
    plan = iop_refresh.plan(load().config, new.config, fingerprint_key=KEY)
    assert plan.changes == (
        Change(
            path="nodes[n2].providers[b].base_url",
            kind=ChangeKind.CHANGED,
            policy="restart",
            before="http://127.0.0.1:8090/v1",
            after="http://127.0.0.1:8091/v1",
        ),
    )
