"""`iop-edge config check | show | schema | explain | refresh | rollback`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click

from iop_edge.cli.files import (
    EXIT_REJECTED,
    config_option,
    counted,
    default_config,
    output_option,
    print_problems,
)
from iop_edge.cli.refresh import refresh, rollback


@click.group()
def config() -> None:
    """Check, show, explain and refresh the config."""


config.add_command(refresh)
config.add_command(rollback)


@config.command()
@click.argument("files", nargs=-1, type=click.Path(path_type=Path), metavar="[FILE]...")
@click.option(
    "--config",
    "-c",
    "overlays",
    multiple=True,
    type=click.Path(path_type=Path),
    metavar="OVERLAY",
    help="A file that is laid over each FILE; can be given several times.",
)
@output_option
def check(files: tuple[Path, ...], overlays: tuple[Path, ...], output: str) -> None:
    """Report every problem of each FILE in one pass; exit 4 when there is one.

    Each FILE is checked on its own, with the overlays on top of it.
    """
    import iop_config

    problems: list[iop_config.Problem] = []
    results = []
    for file in files or (default_config(),):
        try:
            loaded = iop_config.load(file, overlays=overlays)
        except iop_config.ConfigError as error:
            problems += error.problems
            results.append({"file": str(file), "ok": False, "problems": iop_config.problems_json(error.problems)})
            if output == "text":
                print_problems(error)
                click.echo(f"{file}: {counted(len(error.problems), 'problem')}", err=True)
            continue
        results.append({"file": str(file), "ok": True, "config_version": loaded.version, "problems": []})
        if output == "text":
            for warning in loaded.warnings:
                click.echo(f"warning: {warning}", err=True)
            nodes = loaded.config.nodes
            providers = sum(len(node.providers) for node in nodes)
            models = counted(len(loaded.config.models), "model")
            click.echo(f"{file}: ok ({models}, {counted(len(nodes), 'node')}, {counted(providers, 'provider')})")
    if output == "json":
        click.echo(json.dumps({"ok": not problems, "files": results}, indent=2, ensure_ascii=False))
    sys.exit(EXIT_REJECTED if problems else 0)


@config.command()
@click.argument("file", required=False, type=click.Path(path_type=Path))
@config_option
@click.option(
    "--output", "-o", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True, help="How to print."
)
def show(file: Path | None, configs: tuple[Path, ...], output: str) -> None:
    """Print the normalised config with every default, secrets masked."""
    import iop_config

    main, *overlays = [*([file] if file else []), *configs] or [default_config()]
    try:
        loaded = iop_config.load(main, overlays=overlays)
    except iop_config.ConfigError as error:
        print_problems(error)
        sys.exit(EXIT_REJECTED)
    plain = iop_config.to_plain(loaded.config)
    if output == "json":
        click.echo(json.dumps(plain, indent=2, ensure_ascii=False))
    else:
        click.echo(iop_config.to_yaml(plain), nl=False)


@config.command()
def schema() -> None:
    """Print the JSON Schema of the file, for editors."""
    import iop_config

    click.echo(json.dumps(iop_config.schema(), indent=2, ensure_ascii=False))


@config.command()
@click.argument("path")
def explain(path: str) -> None:
    """Say what a field means: type, default, bounds, refresh policy. PATH is like nodes.providers.capacity."""
    import iop_config

    try:
        click.echo(iop_config.explain(path).rstrip("\n"))
    except LookupError as error:
        raise click.UsageError(str(error.args[0])) from None
