"""Write every generated file from its source, or with --check fail when one is stale (`make gen`, `make check`)."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def protobuf(out: Path) -> dict[str, bytes]:
    """Generate the wire messages; returns repository path -> content."""
    command = [
        sys.executable,
        "-m",
        "grpc_tools.protoc",
        "-Iiop_wire=proto/iop",
        f"--python_out={out}",
        f"--pyi_out={out}",
    ]
    subprocess.run([*command, "proto/iop/runtime.proto"], cwd=ROOT, check=True)
    made = sorted((out / "iop_wire").glob("runtime_pb2.py*"))
    return {f"packages/iop_wire/src/iop_wire/{path.name}": path.read_bytes() for path in made}


def with_live_fields(page: str) -> str:
    """Return the page with its table of the live fields renewed; what stands round the table is written by hand."""
    import iop_config

    start, end = "live fields -->\n", "<!-- end -->"
    head, rest = page.split(start)
    tail = rest.split(end)[1]
    rows = [
        f"| `{path}` | {info.doc} |\n"
        for path, info in iop_config.walk_fields(iop_config.EdgeConfig)
        if info.policy is iop_config.Policy.LIVE
    ]
    return head + start + "\n| field | meaning |\n|---|---|\n" + "".join(rows) + "\n" + end + tail


def generated() -> dict[str, bytes]:
    """Return every generated file of the repository, by its path."""
    with tempfile.TemporaryDirectory() as folder:
        files = protobuf(Path(folder))
    import iop_config

    schema = json.dumps(iop_config.schema(), indent=2, ensure_ascii=False) + "\n"
    files["docs/reference/edge.schema.json"] = schema.encode()
    files["docs/reference/config.md"] = iop_config.reference_markdown().encode()
    howto = "docs/howto/change-the-config-safely.md"
    files[howto] = with_live_fields((ROOT / howto).read_text(encoding="utf-8")).encode()
    return files


def main() -> int:
    """Write, or compare with --check; the exit code is 1 when a file is stale."""
    check = "--check" in sys.argv[1:]
    stale = []
    for name, content in generated().items():
        path = ROOT / name
        if path.exists() and path.read_bytes() == content:
            continue
        stale.append(name)
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    for name in stale:
        print(f"{name}: {'differs from its source; run `make gen`' if check else 'written'}")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
