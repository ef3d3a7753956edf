"""Which config a command means: FILE, else $IOP_CONFIG, else ./edge.yaml; and how its problems are printed."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from iop_config import ConfigError, render_text

EXIT_REJECTED = 4

F = TypeVar("F", bound=Callable[..., Any])


def default_config() -> Path:
    """The config file of a command that names none."""
    return Path(os.environ.get("IOP_CONFIG") or "edge.yaml")


def config_option(function: F) -> F:
    """`--config FILE`, repeatable: the main file, then overlays (C2)."""
    return click.option(
        "--config",
        "-c",
        "configs",
        multiple=True,
        type=click.Path(path_type=Path),
        metavar="FILE",
        help="The config; given again, an overlay on top of it. Default: $IOP_CONFIG, else ./edge.yaml.",
    )(function)


def output_option(function: F) -> F:
    """`--output text|json`."""
    return click.option(
        "--output", "-o", type=click.Choice(["text", "json"]), default="text", show_default=True, help="How to print."
    )(function)


def print_problems(error: ConfigError) -> None:
    """Print every problem to stderr, in colour on a terminal."""
    colour = sys.stderr.isatty() and "NO_COLOR" not in os.environ
    click.echo(render_text(error.problems, color=colour), err=True, nl=False)


def counted(number: int, noun: str) -> str:
    """`1 problem`, `2 problems`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
