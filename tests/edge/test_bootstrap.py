"""The bootstrap listener: the join script really joins, and nothing outside the folder can be had (N1)."""

from __future__ import annotations

import os
import socket
import subprocess
import zipfile
from pathlib import Path

import anyio
import httpx2
import pytest

from iop_edge.bootstrap import BootstrapFacts, serve_bootstrap
from support.listening import listening
from support.rules import rule

pytestmark = pytest.mark.anyio
SECRET = "iopn_a-token-that-must-not-be-seen"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


def wheel(folder: Path) -> Path:
    """A wheel named iop-node whose program prints what it was called with, and the mode of its token file."""
    path = folder / "iop_node-9.9.9-py3-none-any.whl"
    code = (
        "import os, sys\n"
        "def main():\n"
        "    file = sys.argv[sys.argv.index('--token-file') + 1]\n"
        "    print('called', *sys.argv[1:])\n"
        "    mode = oct(os.stat(file).st_mode & 0o777)\n"
        "    print('token', open(file).read().strip(), mode, os.environ.get('IOP_NODE_TOKEN'))\n"
    )
    info = "iop_node-9.9.9.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("fake_iop_node.py", code)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: iop-node\nVersion: 9.9.9\n")
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: t\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/entry_points.txt", "[console_scripts]\niop-node = fake_iop_node:main\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


def run_script(text: str, *arguments: str, home: Path, **env: str) -> subprocess.CompletedProcess[str]:
    """Pipe the script into sh, as the documented line does."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PIP_CONFIG_FILE": os.devnull, **env}
    return subprocess.run(
        ["sh", "-s", "--", *arguments], input=text, env=environment, capture_output=True, text=True, timeout=120
    )


@rule("N1")
async def test_the_script_installs_from_this_edge_alone_and_joins(tmp_path: Path) -> None:
    artifacts = tmp_path / "dist"
    artifacts.mkdir()
    wheel(artifacts)
    async with listening(serve_bootstrap, BootstrapFacts("edge.internal:19090", artifact_dir=artifacts)) as url:
        async with httpx2.AsyncClient(trust_env=False) as http:
            script = (await http.get(f"{url}/join.sh")).text
        joined = await anyio.to_thread.run_sync(
            lambda: run_script(script, f"iop1:10.0.0.1:19090:gpu-a:{SECRET}", "--", "--extra", "x y", home=tmp_path)
        )
        folder = tmp_path / ".local/share/iop-node"
        assert joined.returncode == 0, joined.stderr
        lines = joined.stdout.splitlines()
        assert lines[-2] == f"called run --edge 10.0.0.1:19090 --id gpu-a --token-file {folder}/token --extra x y"
        assert lines[-1] == f"token {SECRET} 0o600 None"
        assert SECRET not in joined.stdout.replace(lines[-1], "") + joined.stderr
        again = await anyio.to_thread.run_sync(
            lambda: run_script(script, "--id", "gpu-b", "--no-start", home=tmp_path, IOP_NODE_TOKEN=SECRET)
        )
        assert again.returncode == 0, again.stderr
        assert f"iop-node run --edge edge.internal:19090 --id gpu-b --token-file {folder}/token" in again.stdout
        assert "called" not in again.stdout


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no Node id"),
        (("--id", "a"), "no token"),
        (("--id",), "a Node id must follow"),
        (("--frob",), "not an option"),
    ],
)
async def test_the_script_says_what_is_missing(tmp_path: Path, arguments: tuple[str, ...], said: str) -> None:
    async with listening(serve_bootstrap, BootstrapFacts("e:1")) as url, httpx2.AsyncClient(trust_env=False) as http:
        script = (await http.get(f"{url}/join.sh")).text
    done = await anyio.to_thread.run_sync(lambda: run_script(script, *arguments, home=tmp_path))
    assert done.returncode == 1
    assert said in done.stderr
    assert os.listdir(tmp_path) == []


async def test_an_address_cannot_smuggle_commands_into_the_script() -> None:
    facts = BootstrapFacts("edge:1'; rm -rf /; '", url="https://x/'$(id)")
    async with listening(serve_bootstrap, facts) as url, httpx2.AsyncClient(trust_env=False) as http:
        script = (await http.get(f"{url}/join.sh")).text
    lines = [line for line in script.splitlines() if line.startswith(("edge=", "url="))]
    command = "\n".join(lines) + '\nprintf "%s\\n" "$edge" "$url"'
    shown = await anyio.run_process(["sh", "-c", command])
    assert shown.stdout.decode().splitlines() == ["edge:1'; rm -rf /; '", "https://x/'$(id)"]
    async with listening(serve_bootstrap, BootstrapFacts("e:1")) as url, httpx2.AsyncClient(trust_env=False) as http:
        for host in ("x$(id)", "a b", "a;id", "'", "a/b"):
            assert (await http.get(f"{url}/join.sh", headers={"host": host})).status_code == 400, host
        named = (await http.get(f"{url}/join.sh", headers={"host": "edge.internal:18080"})).text
        assert "url=http://edge.internal:18080\n" in named


async def test_only_plain_files_of_the_folder_itself_are_served(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("outside")
    folder = tmp_path / "dist"
    (folder / "sub").mkdir(parents=True)
    (folder / "sub/inner").write_text("below")
    (folder / ".hidden").write_text("hidden")
    (folder / "link").symlink_to(tmp_path / "secret")
    (folder / "a b+c.whl").write_bytes(b"wheel")
    async with listening(serve_bootstrap, BootstrapFacts("e:1", artifact_dir=folder)) as url:
        async with httpx2.AsyncClient(trust_env=False) as http:
            page = (await http.get(f"{url}/files/")).text
            assert page.count("<a ") == 1
            assert 'href="a%20b%2Bc.whl"' in page
            answer = await http.get(f"{url}/files/a%20b%2Bc.whl")
            assert (answer.status_code, answer.content) == (200, b"wheel")
            assert (await http.head(f"{url}/files/a%20b%2Bc.whl")).status_code == 200
            assert (await http.post(f"{url}/files/")).status_code == 405
        port = int(url.rsplit(":", 1)[1])
        escapes = ("../secret", "..%2fsecret", "%2e%2e/secret", "sub/inner", "sub%2Finner", "link", ".hidden", "sub")
        for path in (*escapes, "/etc/passwd", "%2Fetc%2Fpasswd", "..", "%00", "a b+c.whl%00"):
            status = await anyio.to_thread.run_sync(raw_status, port, f"/files/{path}".replace(" ", "%20"))
            assert status in (400, 404), path


def raw_status(port: int, target: str) -> int:
    """The status of a GET whose path no client library has tidied."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as stream:
        stream.sendall(f"GET {target} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
        return int(stream.recv(100).split()[1])


async def test_without_a_folder_there_is_a_script_and_no_file(tmp_path: Path) -> None:
    for folder in (None, tmp_path / "missing"):
        facts = BootstrapFacts("e:1", artifact_dir=folder)
        async with listening(serve_bootstrap, facts) as url, httpx2.AsyncClient(trust_env=False) as http:
            assert "<a " not in (await http.get(f"{url}/files/")).text
            assert (await http.get(f"{url}/files/x")).status_code == 404
            assert (await http.get(f"{url}/join.sh")).status_code == 200
