"""`iop-edge explain MODEL`: where a request would go now, and why not elsewhere (P15)."""

from __future__ import annotations

import json
from urllib.parse import urlencode

import click

from iop_edge.cli.exits import Exit, fail
from iop_edge.cli.files import output_option
from iop_edge.cli.refresh import admin_option, ask


@click.command()
@click.argument("model")
@click.option(
    "--input-tokens",
    type=click.IntRange(0, 2**31 - 1),
    default=0,
    show_default=True,
    help="How long the prompt is supposed to be: from the threshold on it is a long run.",
)
@admin_option
@output_option
def explain(model: str, input_tokens: int, admin: str | None, output: str) -> None:
    """Say which provider a request for MODEL would get now, and why each other one was passed over."""
    query = urlencode({"model": model, "input_tokens": input_tokens})
    _, reply = ask(admin, "GET", f"/explain?{query}", output=output)
    if reply.status != 200:
        code = Exit.USAGE if reply.status == 404 else Exit.INTERNAL
        fail(code, str(reply.body.get("code", "internal")), str(reply.body.get("message", "")), output=output)
    if output == "json":
        click.echo(json.dumps(reply.body, indent=2, ensure_ascii=False))
    else:
        click.echo(str(reply.body.get("text", "")))
