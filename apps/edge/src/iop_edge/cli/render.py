"""How a refresh result and a status read in a terminal; piped output is never cut or wrapped (R13)."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

__all__ = ["print_result", "print_status", "status_view", "terminal"]

Row = Mapping[str, Any]

_WIDE = 400  # for a pipe: wider than any line
_POLICY = {"live": "green"}
_STATE = {"acked": "green", "unchanged": "dim", "nacked": "red", "no_answer": "red", "pending": "yellow"}
_STATUS = {"available": "green", "disabled": "dim", "pending": "yellow"}
_AFTERWORD = {
    "disconnected": "gets it when it connects",
    "no_answer": "did not answer; it keeps its last good config",
    "nacked": "refused it and keeps its last good config",
}


def terminal() -> Console:
    """Return the console of stdout: colours and its width on a terminal, plain and wide in a pipe."""
    return Console(highlight=False, width=None if sys.stdout.isatty() else _WIDE)


def print_result(result: Row, *, rollback: bool = False, load: Row | None = None) -> None:
    """Print a refresh result for an operator; `load` is a status, to say what is running where it would change."""
    console = terminal()
    console.print(_headline(result), soft_wrap=True)
    before, after = result["config_version_before"], result["config_version_after"]
    versions = f"config {before}" if before == after else f"config {short(before)} → {short(after)}"
    if result["dry_run"] and result["config_version_candidate"]:
        versions += f", proposed {result['config_version_candidate']}"
    console.print(Text(f"{versions}, generation {result['generation']}", style="dim"), soft_wrap=True)
    pending = set(result["pending_restart_paths"])
    _print_lines(console, "", [_change_cells(change, pending) for change in result["changes"]])
    for kind, style in (("problems", "red"), ("warnings", "yellow")):
        for problem in result[kind]:
            console.print(_problem_line(problem, style), soft_wrap=True)
    if not result["dry_run"]:
        _print_lines(console, "nodes", [_node_cells(node) for node in result["nodes"] if node["state"] != "unchanged"])
    else:
        nodes = [node["node"] for node in result["nodes"] if node["state"] in ("pending", "disconnected")]
        if nodes:
            console.print(f"nodes that would get a new config: {', '.join(nodes)}", soft_wrap=True)
        if load is not None and result["changes"]:
            _print_lines(console, "running there now", _load_cells(result, load))
    for hint in _hints(result, rollback):
        console.print(Text(hint, style="yellow"), soft_wrap=True)


def short(version: str) -> str:
    """A version cut to what people compare."""
    name, colon, digest = version.partition(":")
    return f"{name}:{digest[:12]}" if colon else version[:19]


def _headline(result: Row) -> Text:
    live, restart = len(result["live_paths"]), len(result["restart_required_paths"])
    would = "dry run: " if result["dry_run"] else ""
    match result["status"]:
        case "rejected":
            return Text(f"{would}rejected: nothing has changed", style="bold red")
        case "restart_required" if result["live_applied"]:
            done = "would be applied" if result["dry_run"] else "applied"
            waiting = len(result["pending_restart_paths"])
            text = f"{would}the live part {done}; {_counted(waiting, 'change')} {_verb(waiting)} for a restart"
            return Text(text, style="bold yellow")
        case "restart_required":
            text = f"{would}restart required by {_counted(restart, 'change')}: nothing "
            return Text(text + ("would be applied" if result["dry_run"] else "has changed"), style="bold yellow")
        case _ if not result["changed"]:
            return Text(f"{would}no change", style="bold green")
        case _ if result["dry_run"]:
            return Text(f"{would}{_counted(live, 'live change')} would be applied", style="bold green")
        case _:
            return Text(f"applied {_counted(live, 'live change')}", style="bold green")


def _change_cells(change: Row, pending: set[str]) -> Sequence[Text]:
    sign = {"added": "+", "removed": "-", "moved": ">"}.get(change["kind"], " ")
    # A live field of an object that waits for a restart waits with it (R5).
    policy = "live, waits" if change["policy"] == "live" and change["path"] in pending else change["policy"]
    place = f"  line {change['line']}" if change["line"] and change["kind"] != "removed" else ""
    return (
        Text(f"{sign} {policy}", style=_POLICY.get(policy, "yellow")),
        Text(change["path"], style="bold"),
        Text.assemble(_values(change), (place, "dim")),
    )


def _values(change: Row) -> str:
    before, after = change["before"], change["after"]
    if change["kind"] in ("added", "removed"):
        return str(change["kind"])
    if change["kind"] == "moved":
        return f"moved from {before} to {after}"
    return f"{before or '(not set)'} → {after or '(not set)'}"


def _problem_line(problem: Row, style: str) -> Text:
    where = problem["file"] + (f":{problem['line']}:{problem['column']}" if problem["line"] else "")
    parts = [part for part in (where, problem["path"]) if part]
    message = problem["message"] + (f"; {problem['suggestion']}" if problem["suggestion"] else "")
    return Text.assemble(": ".join([*parts, ""]), (message, style), (f"  [{problem['code']}]", "dim"))


def _node_cells(node: Row) -> Sequence[Text]:
    state = node["state"]
    return (
        Text(node["node"], style="bold"),
        Text(state, style=_STATE.get(state, "")),
        Text(node["message"] or _AFTERWORD.get(state, "")),
    )


def _load_cells(result: Row, load: Row) -> Iterable[Sequence[Text]]:
    """Whom the changes concern at this moment: slots in use and waiters of changed providers and models."""
    nodes, providers, models = (set(result[f"changed_{kind}"]) for kind in ("nodes", "providers", "models"))
    for row in load.get("providers", ()):
        busy = row["in_flight"] or row["queue_length"]
        if row["id"] in providers or (row.get("node") in nodes and busy):
            cells = f"{row['in_flight']} in flight of {row['capacity']}, {row['queue_length']} waiting"
            yield Text(f"provider {row['id']}", style="bold"), Text(str(row.get("node") or "")), Text(cells)
    for row in load.get("models", ()):
        if row["id"] in models:
            cells = f"{row['in_flight']} in flight, {row['queue_length']} waiting"
            yield Text(f"model {row['id']}", style="bold"), Text(""), Text(cells)


def _hints(result: Row, rollback: bool) -> Iterable[str]:
    refused = result["status"] == "restart_required" and not result["live_applied"]
    live_elsewhere = set(result["live_paths"]) - set(result["pending_restart_paths"])
    if refused and live_elsewhere:
        yield (
            f"with --allow-partial {_counted(len(live_elsewhere), 'live change')} would be applied now:"
            f" {_listed(live_elsewhere)}"
        )
    elif result["status"] == "restart_required":
        yield "restart the edge to bring the rest into force, or take it out of the file"
    if rollback and result["live_applied"] and not result["dry_run"]:
        yield "the config file still has the newer config: the next refresh applies it again"


def _listed(paths: Iterable[str]) -> str:
    first, *rest = sorted(paths)
    return ", ".join([first, *rest[:4]]) + (f" and {len(rest) - 4} more" if len(rest) > 4 else "")


def _print_lines(console: Console, title: str, rows: Iterable[Sequence[Text]]) -> None:
    """Print cells in aligned columns, one line each whatever its length."""
    lines = [list(row) for row in rows]
    if not lines:
        return
    if title:
        console.print(Text(title, style="dim"))
    widths = [max(cell.cell_len for cell in column) for column in zip(*lines, strict=True)]
    for line in lines:
        text = Text("  ")
        for cell, width in zip(line, widths, strict=True):
            text.append_text(cell).append(" " * (width - cell.cell_len + 2))
        text.rstrip()
        console.print(text, soft_wrap=True)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _verb(number: int) -> str:
    return "waits" if number == 1 else "wait"


# -- status -----------------------------------------------------------------------------------------------------------


def print_status(status: Row) -> None:
    """Print the whole status once."""
    console = terminal()
    if console.is_terminal:
        console.print(status_view(status))
        return
    with console.capture() as captured:
        console.print(status_view(status))
    lines = [line.rstrip() for line in captured.get().splitlines()]  # tables fill their cells with spaces
    print("\n".join(line for line, before in zip(lines, ["", *lines], strict=False) if line or before))


def status_view(status: Row) -> Table:
    """Return the whole status as one thing to print or to keep up to date."""
    view = Table.grid(padding=(1, 0, 0, 0))
    view.add_row(_status_head(status))
    view.add_row(_provider_table(status.get("providers", ())))
    view.add_row(_model_table(status.get("models", ())))
    view.add_row(_node_table(status.get("nodes", ())))
    return view


def _status_head(status: Row) -> Text:
    edge = status.get("edge", {})
    text = Text.assemble(
        (f"edge {edge.get('id', '?')}", "bold"),
        f"  {edge.get('version', '')}  up {_duration(edge.get('uptime_s'))}",
        (f"  config {short(str(status.get('config_version', '')))}", "dim"),
        (f"  generation {status.get('generation', '')}", "dim"),
    )
    if status.get("leaked_slots"):
        text.append(f"\n{status['leaked_slots']} slots are leaked: please report this", style="bold red")
    pending = status.get("pending_restart_paths") or ()
    if pending:
        text.append(f"\nwaits for a restart: {_listed(pending)}", style="yellow")
    return text


def _table(*columns: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="dim", show_edge=False)
    for column in columns:
        name, _, right = column.partition(">")
        table.add_column(name, justify="right" if right else "left", no_wrap=True)
    return table


def _provider_table(rows: Iterable[Row]) -> Table:
    table = _table("provider", "node", "status", "health", "in flight>r", "long>r", "waiting>r", "message")
    for row in rows:
        limit = row.get("long_context_capacity")
        load = f"{row['in_flight']}/{row['capacity']}" + (f" +{row['cancelling']}c" if row.get("cancelling") else "")
        table.add_row(
            row["id"],
            row.get("node") or "",
            Text(row["status"], style=_STATUS.get(row["status"], "red")),
            Text(row["health"], style="" if row["health"] == "healthy" else "yellow"),
            load,
            f"{row['long_in_flight']}/{limit}" if limit is not None else "",
            str(row["queue_length"]),
            row.get("message") or row.get("blocked") or "",
        )
    return table


def _model_table(rows: Iterable[Row]) -> Table:
    table = _table("model", "in flight>r", "waiting>r", "oldest>r", "next", "providers")
    for row in rows:
        waiting = f"{row['queue_length']}/{row['queue_bound']}"
        oldest = f"{row['oldest_wait_ms'] / 1000:.1f} s" if row["queue_length"] else ""
        ahead = row.get("next_normal") or "queue"
        table.add_row(row["id"], str(row["in_flight"]), waiting, oldest, ahead, ", ".join(row["providers"]))
    return table


def _node_table(rows: Iterable[Row]) -> Table:
    table = _table("node", "state", "since", "config", "runs>r", "version", "message")
    for row in rows:
        state = str(row.get("state", ""))
        config = "acknowledged" if row.get("acknowledged") else (row.get("push_state") or "pending")
        faults = "; ".join(f"{fault['path']}: {fault['message']}" for fault in row.get("push_faults") or ())
        table.add_row(
            row["id"],
            Text(state, style="green" if state == "connected" else "red"),
            _duration(row.get("connected_for")),
            config if row.get("connected") else "",
            str(row.get("active_runs", "")),
            row.get("node_version", ""),
            faults or ("" if row.get("connected") else row.get("last_end", "")),
        )
    return table


def _duration(seconds: float | None) -> str:
    if seconds is None:
        return ""
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"
