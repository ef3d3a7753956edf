"""`iop-pool` is a product of its own: alone it brings attrs and anyio, and its README's program runs (P12)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
import venv
from importlib.metadata import distribution
from pathlib import Path

from packaging.requirements import Requirement

from support.rules import rule

ROOT = Path(__file__).resolve().parent.parent
POOL = ROOT / "packages/iop_pool"


def needs(name: str, found: set[str]) -> set[str]:
    """The distribution and all that it needs on this interpreter, by what the installed ones say of themselves."""
    if name not in found:
        found.add(name)
        for text in distribution(name).requires or ():
            requirement = Requirement(text)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                needs(requirement.name.lower(), found)
    return found


@rule("P12")
def test_the_pool_needs_attrs_and_anyio_and_nothing_else() -> None:
    declared = tomllib.loads((POOL / "pyproject.toml").read_text())["project"]["dependencies"]
    assert {Requirement(text).name for text in declared} == {"attrs", "anyio"}


@rule("P12")
def test_alone_in_an_environment_the_readmes_program_runs(tmp_path: Path) -> None:
    # What pip would fetch is copied from here instead, so that the test needs no network: the same closure, no more.
    home = tmp_path / "venv"
    venv.create(home, with_pip=False)
    python = home / "bin/python"
    asked = [str(python), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"]
    site = Path(subprocess.run(asked, capture_output=True, text=True, check=True, timeout=60).stdout.strip())
    for name in needs("attrs", set()) | needs("anyio", set()):
        for file in distribution(name).files or ():
            source = Path(str(distribution(name).locate_file(file)))
            if ".." in file.parts or not source.is_file():
                continue
            target = site / str(file)
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(source.read_bytes())
    (site / "pool.pth").write_text(f"{POOL / 'src'}\n")

    readme = (POOL / "README.md").read_text(encoding="utf-8")
    found = re.search(r"^```python\n(.*?)^```\n\n```output\n(.*?)^```", readme, flags=re.MULTILINE | re.DOTALL)
    assert found is not None
    done = subprocess.run([str(python), "-c", found[1]], capture_output=True, text=True, timeout=60, check=False)
    assert (done.stdout, done.stderr) == (found[2], "")

    listing = "import json, iop_pool, sys; print(json.dumps(sorted({name.partition('.')[0] for name in sys.modules})))"
    done = subprocess.run([str(python), "-c", listing], capture_output=True, text=True, timeout=60, check=True)
    loaded = set(json.loads(done.stdout)) - sys.stdlib_module_names
    strangers = {name for name in loaded if not name.startswith("_")} - {
        "attr", "attrs", "anyio", "sniffio", "idna", "typing_extensions", "iop_pool",
    }  # fmt: skip
    assert not strangers
