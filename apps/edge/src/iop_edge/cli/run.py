"""`iop-edge run`: serves until it is told to stop."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from iop_edge.cli.files import EXIT_REJECTED, config_option, default_config, print_problems


@click.command()
@config_option
@click.option("--watch", is_flag=True, help="Apply the config whenever one of its files changes.")
@click.option("--last-good", is_flag=True, help="Start from the config that was applied last, not from the file.")
def run(configs: tuple[Path, ...], watch: bool, last_good: bool) -> None:
    """Serve until SIGTERM; a second SIGTERM stops at once, SIGHUP applies the config."""
    import iop_config
    from iop_edge import app, logs
    from iop_edge.runtime import absolute
    from iop_edge.state import StateError, StateFolder

    paths = absolute(configs or (default_config(),))
    try:
        state, loaded = _load(paths, last_good)
        logging_config = iop_config.reveal(loaded.config.logging)
        logs.set_up(logging_config.level, logging_config.format)
        for warning in loaded.warnings:
            click.echo(f"warning: {warning}", err=True)
        code = app.main(loaded, state, paths, watch=watch, announce=lambda line: click.echo(line))
    except iop_config.ConfigError as error:
        print_problems(error)
        kept = StateFolder.default().last_good_path() if not last_good else None
        if kept is not None:
            click.echo(
                f"the config that was applied last is kept in {kept}; `iop-edge run --last-good` starts from it",
                err=True,
            )
        sys.exit(EXIT_REJECTED)
    except (app.StartError, StateError) as error:
        click.echo(f"iop-edge: {error}", err=True)
        sys.exit(1)
    sys.exit(code)
