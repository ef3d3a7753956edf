"""`iop-edge node add ID`: makes a Node's token, its config entry and the line that joins it (N1)."""

from __future__ import annotations

import hashlib
import re
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from iop_edge.cli.files import EXIT_REJECTED, config_option, default_config, print_problems
from iop_edge.tokens import NODE_TOKEN_PREFIX, digest, new_token

if TYPE_CHECKING:
    from iop_config import TlsConfig

_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)


@click.group()
def node() -> None:
    """Machines that run the runtimes."""


@node.command()
@click.argument("node_id", metavar="ID")
@config_option
def add(node_id: str, configs: tuple[Path, ...]) -> None:
    """Print the config entry for a new Node (a hash, never the token) and the line to paste on its machine."""
    import iop_config

    if not node_id or any(c in node_id for c in ": \t\n/"):
        raise click.UsageError(f"{node_id!r} is no Node id; use letters, digits, dots and dashes")
    main, *overlays = configs or (default_config(),)
    try:
        loaded = iop_config.load(main, overlays=overlays)
    except iop_config.ConfigError as error:
        print_problems(error)
        sys.exit(EXIT_REJECTED)
    if any(existing.id == node_id for existing in loaded.config.nodes):
        raise click.UsageError(
            f'node "{node_id}" exists; to rotate its token, keep its hash as previous_token_hash_sha256 and set a new'
        )
    server = iop_config.reveal(loaded.config.server)
    secret = new_token(NODE_TOKEN_PREFIX)
    entry = {"id": node_id, "token_hash_sha256": digest(secret), "providers": []}
    click.echo("# add to nodes (needs a restart of the Edge), with the providers of that machine:")
    click.echo(iop_config.to_yaml([entry]), nl=False)
    click.echo("# run on the new machine; the secret is shown only now:")
    pin = f":{_certificate_hash(server.tls, main)}" if server.tls is not None else ""
    click.echo(f"iop-node run iop1:{server.advertise or server.listen}:{node_id}:{secret}{pin}")


def _certificate_hash(tls: TlsConfig, main: Path) -> str:
    """Return the sha256 of the Edge's certificate: the Node checks it before it sends its token (N1)."""
    path = main.parent / tls.cert_file
    try:
        found = _CERTIFICATE.search(path.read_text(encoding="ascii"))
        if found is None:
            raise click.ClickException(f"server.tls.cert_file: {path}: holds no PEM certificate")
        return hashlib.sha256(ssl.PEM_cert_to_DER_cert(found.group())).hexdigest()
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is no PEM certificate"
        raise click.ClickException(f"server.tls.cert_file: {path}: {reason}") from None
