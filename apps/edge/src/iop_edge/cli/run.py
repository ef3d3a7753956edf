"""`iop-edge run`: serves until it is told to stop."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from iop_edge.cli.files import EXIT_REJECTED, config_option, default_config, print_problems

if TYPE_CHECKING:
    from iop_config import Loaded
    from iop_edge.state import StateFolder


def _load(paths: Sequence[Path], last_good: bool) -> tuple[StateFolder, Loaded]:
    """Load the config that is to serve, and name its state folder. Raises ConfigError, StateError."""
    import attrs

    import iop_config
    from iop_edge.state import StateError, StateFolder

    main, *overlays = paths
    if last_good:
        state = StateFolder.beside(main)
        kept = state.last_good()
        if kept is None:
            raise StateError(f"{state.path}: no config is kept there; one is after the first start with a good file")
        texts = [iop_config.text_source(text, name=path, base_dir=Path(path).parent) for path, text in kept.documents]
        return state, iop_config.load_sources(texts, digest_key=state.digest_key())
    loaded = iop_config.load(main, overlays=overlays)
    state = StateFolder.of(loaded.config, main.parent)
    # The key lies in the folder that the config names; the texts are not read again for it.
    version = iop_config.config_version(loaded.config, state.digest_key())
    return state, attrs.evolve(loaded, version=version)


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
        kept = StateFolder.beside(paths[0]).last_good_path() if not last_good else None
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
