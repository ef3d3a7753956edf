"""`iop-edge token new`: makes an API key; the config gets only its hash (E4, C14)."""

from __future__ import annotations

import click

from iop_edge.tokens import API_KEY_PREFIX, digest, new_token


@click.group()
def token() -> None:
    """API keys of clients."""


@token.command()
@click.option("--ref", required=True, help="Names this key in usage records and logs.")
@click.option("--principal", required=True, help="Whom its usage is counted for.")
@click.option("--alias", help="A readable name of the principal.")
def new(ref: str, principal: str, alias: str | None) -> None:
    """Print a new API key once, and the entry for openai.principal_tokens that accepts it."""
    import iop_config

    secret = new_token(API_KEY_PREFIX)
    entry = {"token_ref": ref, "token_hash_sha256": digest(secret), "principal_ref": principal}
    if alias:
        entry["principal_alias"] = alias
    click.echo("# add to openai.principal_tokens (needs a restart of the Edge):")
    click.echo(iop_config.to_yaml([entry]), nl=False)
    click.echo("# the key; it is shown only now:")
    click.echo(secret)
