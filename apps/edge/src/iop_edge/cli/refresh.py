"""`iop-edge config refresh` and `rollback`: ask the running Edge, print what came of it, choose the exit code (R13)."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from iop_edge.cli.client import Admin, AdminReply, UnreachableError, find_admin
from iop_edge.cli.exits import Exit, exit_of, fail
from iop_edge.cli.files import output_option

F = TypeVar("F", bound=Callable[..., Any])

_WAIT_SECONDS_MAX = 600.0


def admin_option(function: F) -> F:
    """`--admin ADDRESS`."""
    return click.option(
        "--admin",
        metavar="ADDRESS",
        help="The running Edge's admin API: host:port or unix:PATH. Default: $IOP_ADMIN, else where it says it is.",
    )(function)


def refresh_options(function: F) -> F:
    """The options that refresh and rollback share."""
    options = [
        click.option("--dry-run", is_flag=True, help="Say what would happen and change nothing."),
        click.option("--expect", metavar="VERSION", help="Only where this config version is running (else exit 5)."),
        click.option(
            "--expect-candidate", metavar="VERSION", help="Only what a dry run showed as the candidate (else exit 5)."
        ),
        click.option("--allow-partial", is_flag=True, help="Apply what is live; the rest waits for a restart."),
        click.option(
            "--wait",
            type=click.FloatRange(0, _WAIT_SECONDS_MAX),
            default=2.0,
            show_default=True,
            metavar="SECONDS",
            help="How long to wait for the Nodes' answers.",
        ),
        click.option("--detailed-exitcode", is_flag=True, help="Exit 10 where a dry run finds live changes."),
        admin_option,
        output_option,
    ]
    for option in reversed(options):
        function = option(function)
    return function


@click.command()
@refresh_options
def refresh(**options: Any) -> None:
    """Apply the config file to the running Edge, without losing a request.

    Exit codes: 0 applied or nothing to do, 3 a restart is required, 4 rejected, 5 an expectation failed, 6 applied but
    a Node has not acknowledged, 7 the Edge cannot be reached, 10 live changes (--dry-run --detailed-exitcode).
    """
    _run("/refresh", **options)


@click.command()
@refresh_options
def rollback(**options: Any) -> None:
    """Apply the config that was in force before the present one; flags and exit codes are those of refresh."""
    _run("/rollback", **options)


def _run(
    path: str,
    *,
    dry_run: bool,
    expect: str | None,
    expect_candidate: str | None,
    allow_partial: bool,
    wait: float,
    detailed_exitcode: bool,
    admin: str | None,
    output: str,
) -> None:
    body = {
        "mode": "dry_run" if dry_run else "apply",
        "allow_partial": allow_partial,
        "expected_version": expect,
        "expected_candidate": expect_candidate,
        "wait_ms": round(wait * 1000),
    }
    edge, reply = ask(admin, "POST", path, body, output=output, patience=wait)
    result = reply.body
    if "status" not in result or result["status"] == "error":
        fail(Exit.INTERNAL, str(result.get("code", "internal")), str(result.get("message", "")), output=output)
    if output == "json":
        click.echo(json.dumps(result, indent=2, ensure_ascii=False))
    else:
        from iop_edge.cli.render import print_result

        print_result(result, rollback=path == "/rollback", load=_load(edge) if dry_run else None)
    sys.exit(exit_of(result, detailed=detailed_exitcode))


def _load(edge: Admin) -> dict[str, object] | None:
    """What is running and waiting now, so that a dry run can say whom a change concerns; None where it is not told."""
    try:
        reply = edge.call("GET", "/status")
    except UnreachableError:
        return None
    return reply.body if reply.status == 200 else None


def ask(
    admin: str | None, method: str, path: str, body: dict[str, Any] | None = None, *, output: str, patience: float = 0.0
) -> tuple[Admin, AdminReply]:
    """Call the running Edge; where that is not possible say why and exit."""
    try:
        edge = find_admin(admin)
        return edge, edge.call(method, path, body, patience=patience)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    except UnreachableError as error:
        fail(Exit.UNREACHABLE, "unreachable", str(error), output=output)
