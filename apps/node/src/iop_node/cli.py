"""`iop-node`: run the Node, or look at it. It takes the Edge's address, an id and a token, and nothing else (N1)."""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from pathlib import Path

# gRPC's fork handlers crash the children of a process that spawns commands; it reads this when it is first imported.
os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")

import click

_JOIN = re.compile(
    r"iop1:(?P<edge>(?:\[[^\]]+\]|[^:\[\]]+):\d+):(?P<id>[^:]+):(?P<token>[^:]+)(?::(?P<pin>[0-9a-fA-F]{64}))?"
)


class Stop(Exception):  # noqa: N818  not an error of the program
    """What waiting cannot cure: the text goes to stderr, the exit code is 2."""


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="iop-node", prog_name="iop-node")
def main() -> None:
    """The IOP Node: runs beside inference runtimes, dials the Edge and executes the runs it is sent."""


@main.command()
@click.argument("join", required=False, metavar="[JOIN]")
@click.option("--edge", envvar="IOP_EDGE", metavar="HOST:PORT", help="The Edge's server.listen. Or $IOP_EDGE.")
@click.option("--id", "node_id", envvar="IOP_NODE_ID", metavar="ID", help="This Node's id. Or $IOP_NODE_ID.")
@click.option(
    "--token-file", type=click.Path(path_type=Path), metavar="FILE", help="The token's file. Or $IOP_NODE_TOKEN itself."
)
@click.option("--tls", is_flag=True, help="Use TLS and trust the system's authorities.")
@click.option("--ca-file", type=click.Path(path_type=Path), metavar="FILE", help="TLS, and trust this authority (PEM).")
@click.option("--cert-file", type=click.Path(path_type=Path), metavar="FILE", help="This Node's certificate, for mTLS.")
@click.option("--key-file", type=click.Path(path_type=Path), metavar="FILE", help="Its private key.")
@click.option("--insecure", is_flag=True, help="Allow plaintext to another machine, in a network that you trust.")
@click.option(
    "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True,
    help="The least severity that is written to stderr.",
)  # fmt: skip
def run(
    join: str | None,
    edge: str | None,
    node_id: str | None,
    token_file: Path | None,
    tls: bool,
    ca_file: Path | None,
    cert_file: Path | None,
    key_file: Path | None,
    insecure: bool,
    log_level: str,
) -> None:
    """Serve until SIGTERM; a second one stops at once. JOIN is the line that `iop-edge node add` printed."""
    import asyncio

    import uvloop

    from iop_node.app import NodeApp
    from iop_node.dial import DialError, DialSettings, DialTls

    _log(log_level)
    try:
        edge, node_id, token, pin = _who(join, edge, node_id, token_file)
        files = [
            _read(path, name)
            for path, name in ((ca_file, "--ca-file"), (cert_file, "--cert-file"), (key_file, "--key-file"))
        ]
        if (cert_file is None) != (key_file is None):
            raise Stop("--cert-file and --key-file go together")
        with_tls = tls or pin is not None or any(file is not None for file in files)
        trust = DialTls(ca=files[0], fingerprint=pin, certificate=files[1], private_key=files[2]) if with_tls else None
        settings = DialSettings(edge=edge, node_id=node_id, token=token, tls=trust, insecure=insecure)

        async def serve() -> int:
            return await NodeApp(settings, state_folder(node_id)).run(lambda line: click.echo(line))

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            code = runner.run(serve())
    except (Stop, DialError) as error:
        click.echo(f"iop-node: {error}", err=True)
        sys.exit(2)
    sys.exit(code)


@main.command()
@click.option("--id", "node_id", envvar="IOP_NODE_ID", metavar="ID", help="Which Node, where several run here.")
@click.option(
    "--output", "-o", type=click.Choice(["text", "json"]), default="text", show_default=True, help="How to print."
)
def status(node_id: str | None, output: str) -> None:
    """Show how the Node of this machine is connected. Exit 0 when it is ready, 1 when it is not, 7 when none runs."""
    import json

    from iop_node.app import status_path

    folders = [state_folder(node_id)] if node_id else sorted(_state_root().glob("node-*"))
    found = []
    for folder in folders:
        try:
            plain = json.loads(status_path(folder).read_text())
        except (OSError, ValueError):
            continue
        if _alive(plain.get("pid")):
            found.append(plain)
    if output == "json":
        click.echo(json.dumps(found, indent=2))
    else:
        for plain in found:
            click.echo(_words(plain))
    if not found:
        click.echo("iop-node: no Node runs here" + (f' with the id "{node_id}"' if node_id else ""), err=True)
        sys.exit(7)
    sys.exit(0 if all(plain["phase"] == "ready" for plain in found) else 1)


def _words(plain: dict[str, object]) -> str:
    since = max(0, round(time.time() - float(str(plain["since"]))))
    lines = [f"{plain['node_id']}  {plain['phase']} for {since} s  edge={plain['edge']}  pid={plain['pid']}"]
    if plain.get("edge_id"):
        lines[0] += f"  edge_id={plain['edge_id']}"
    if plain.get("config_version"):
        lines.append(f"  config {str(plain['config_version'])[:12]}, generation {plain['config_generation']}")
    providers = plain.get("providers")
    if isinstance(providers, list) and providers:
        lines.append(f"  providers {', '.join(map(str, providers))}")
    if plain.get("last_error"):
        lines.append(f"  last error: {plain['last_error']}")
    return "\n".join(lines)


def _alive(pid: object) -> bool:
    if not isinstance(pid, int):
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _who(
    join: str | None, edge: str | None, node_id: str | None, token_file: Path | None
) -> tuple[str, str, str, str | None]:
    """Return the Edge's address, this Node's id and token, and the certificate's hash where the join line has one."""
    if join is not None:
        found = _JOIN.fullmatch(join.strip())
        if found is None:
            # Never with the text: there is a token in it.
            raise Stop("the join line is not of the form iop1:HOST:PORT:ID:TOKEN; was all of it pasted?")
        return found["edge"], found["id"], found["token"], found["pin"]
    if not edge:
        raise Stop("no Edge is named; give --edge HOST:PORT, $IOP_EDGE, or the join line of `iop-edge node add`")
    if not node_id:
        raise Stop("no id is given; give --id ID or $IOP_NODE_ID, as it stands under nodes in the Edge's config")
    token = os.environ.get("IOP_NODE_TOKEN", "")
    if token_file is not None:
        token = (_read(token_file, "--token-file") or b"").decode("utf-8", "replace").strip()
        if not token:
            raise Stop(f"{token_file} is empty; it should hold the token that `iop-edge node add` printed")
    if not token:
        raise Stop("no token is given; give --token-file FILE or $IOP_NODE_TOKEN")
    return edge, node_id, token, None


def _read(path: Path | None, option: str) -> bytes | None:
    if path is None:
        return None
    try:
        return path.read_bytes()
    except OSError as error:
        raise Stop(f"{option} {path}: {error.strerror}") from None


def _state_root() -> Path:
    """The state folder (C25): a Node knows no config, so it is $IOP_STATE_DIR or XDG's."""
    given = os.environ.get("IOP_STATE_DIR")
    if given:
        return Path(given)
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base and os.path.isabs(base) else Path.home() / ".local/state") / "iop"


def state_folder(node_id: str) -> Path:
    """This Node's own folder: `node-ID` in the state folder, with an id that is fit for a file name."""
    return _state_root() / ("node-" + re.sub(r"[^A-Za-z0-9._-]", "_", node_id))


class _Line(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        text = f"{stamp}.{int(record.msecs):03d}Z {record.levelname.lower()} {record.name}: {record.getMessage()}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def _log(level: str) -> None:
    """Log to stderr. Libraries speak from `warning` up only: their debug lines could hold headers."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Line())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("iop").setLevel(level.upper())
