"""`iop-edge status`: what the running Edge serves, who waits, which Nodes are there."""

from __future__ import annotations

import contextlib
import json
import time

import click

from iop_edge.cli.client import Admin, UnreachableError
from iop_edge.cli.exits import Exit, fail
from iop_edge.cli.files import output_option
from iop_edge.cli.refresh import admin_option, ask

_PERIOD_SECONDS = 1.0


@click.command()
@click.option("--watch", is_flag=True, help="Keep it up to date until Ctrl-C; with JSON, one line a second.")
@admin_option
@output_option
def status(watch: bool, admin: str | None, output: str) -> None:
    """Show the running Edge: providers and their load, models and their queues, Nodes, what waits for a restart."""
    edge, reply = ask(admin, "GET", "/status", output=output)
    if reply.status != 200:
        fail(Exit.INTERNAL, str(reply.body.get("code", "internal")), str(reply.body.get("message", "")), output=output)
    if output == "json":
        click.echo(json.dumps(reply.body, indent=None if watch else 2, ensure_ascii=False))
    elif not watch:
        from iop_edge.cli.render import print_status

        print_status(reply.body)
    if watch:
        with contextlib.suppress(KeyboardInterrupt):  # that is how one leaves
            _keep_showing(edge, reply.body, output)


def _keep_showing(edge: Admin, first: dict[str, object], output: str) -> None:
    if output == "json":
        while True:
            time.sleep(_PERIOD_SECONDS)
            click.echo(json.dumps(_again(edge, output), ensure_ascii=False))
    from rich.live import Live

    from iop_edge.cli.render import status_view, terminal

    console = terminal()
    with Live(status_view(first), console=console, screen=console.is_terminal, auto_refresh=False) as live:
        while True:
            time.sleep(_PERIOD_SECONDS)
            live.update(status_view(_again(edge, output)), refresh=True)


def _again(edge: Admin, output: str) -> dict[str, object]:
    try:
        return edge.call("GET", "/status").body
    except UnreachableError as error:
        fail(Exit.UNREACHABLE, "unreachable", str(error), output=output)
