"""`iop-edge`: the command line. A command a function; each parses, makes one call, prints, chooses the exit code."""

from __future__ import annotations

import os

# gRPC's fork handlers crash the children of a process that spawns commands; it reads this when it is first imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import click

from iop_edge.cli.config import config
from iop_edge.cli.explain import explain
from iop_edge.cli.node import node
from iop_edge.cli.run import run
from iop_edge.cli.status import status
from iop_edge.cli.token import token


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="iop-edge", prog_name="iop-edge")
def main() -> None:
    """The IOP Edge: one OpenAI-compatible endpoint in front of a pool of inference providers."""


for command in (run, config, status, explain, node, token):
    main.add_command(command)
