"""StateFolder: what the Edge keeps on disk: digest key, accepted configs, and where it can be reached (C25, R15)."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from attrs import field, frozen

import iop_config
from iop_config import ConfigError, EdgeConfig, Source, reveal

__all__ = ["Kept", "RuntimeInfo", "StagedConfig", "StateError", "StateFolder"]

_KEY_BYTES = 32
_KEY_FILE = "digest.key"
_RUNTIME_FILE = "edge.json"
_CONFIGS = "configs"
_INDEX = "kept.json"
_FORM = 1  # of the index; another number is a file of a newer version, and is not touched


class StateError(Exception):
    """The state folder cannot be used; the text names the file and the problem."""


@frozen
class Kept:
    """A config that was in force: its texts as they were written, never an injected value (R15)."""

    version: str
    """The proposed config's version at that time."""
    kept_at: str
    """UTC, RFC 3339."""
    documents: tuple[tuple[str, str], ...] = field(repr=False)
    """`(path of the original file, text)`, the main file first."""
    files: tuple[Path, ...]
    """Where the texts lie in the state folder."""


@frozen
class StagedConfig:
    """Texts that are on disk already; `commit` makes them the last-good ones by replacing one small file."""

    version: str
    entry: Mapping[str, object] = field(repr=False)
    commit: Callable[[], None] = field(repr=False)
    """Raises StateError where the disk fails at this last step."""


@frozen
class RuntimeInfo:
    """Where a running Edge says that its admin API is."""

    admin: str
    """host:port, or unix:PATH."""
    pid: int

    @property
    def alive(self) -> bool:
        """Whether a process of this id exists."""
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            return False
        except (PermissionError, OverflowError):
            return True
        return True


class StateFolder:
    """One folder of mode 0700; every file in it has mode 0600 and is replaced as a whole, never edited."""

    def __init__(self, path: Path) -> None:
        """Name the folder; nothing is made until something is written."""
        self.path = path

    @classmethod
    def default(cls) -> StateFolder:
        """`$IOP_STATE_DIR`, else `iop` in the XDG state folder."""
        named = os.environ.get("IOP_STATE_DIR")
        if named:
            return cls(Path(os.path.abspath(named)))
        xdg = os.environ.get("XDG_STATE_HOME", "")
        # The XDG specification: a relative path is to be ignored.
        base = Path(xdg) if os.path.isabs(xdg) else Path.home() / ".local" / "state"
        return cls(base / "iop")

    @classmethod
    def of(cls, config: EdgeConfig, base_dir: Path) -> StateFolder:
        """`edge.state_dir`, a relative one from `base_dir` (the main file's folder); else the default (C25)."""
        named = reveal(config.edge.state_dir)
        return cls(Path(os.path.abspath(base_dir / named))) if named else cls.default()

    @classmethod
    def beside(cls, main: Path) -> StateFolder:
        """The folder of the Edge that serves this file, also where the file does not load at the moment.

        A broken file, or one whose secrets are in the Edge's environment only, still says in a line where its state
        lies: a command must find the Edge all the same.
        """
        try:
            return cls.of(iop_config.load(main).config, main.absolute().parent)
        except ConfigError:
            named = _scan_state_dir(main)
            return cls(Path(os.path.abspath(main.absolute().parent / named))) if named else cls.default()

    # -- digest key -----------------------------------------------------------------------------------------------

    def digest_key(self) -> bytes:
        """Return the key that makes `config_version` stable over restarts; made once (C25). Raises StateError."""
        file = self.path / _KEY_FILE
        with self._plainly(file):
            if not file.exists():
                self._make(self.path)
                temporary = self._write_temporary(file, secrets.token_bytes(_KEY_BYTES))
                # A link fails where the name exists: of two that start at once, both use the key of the first.
                try:
                    with contextlib.suppress(FileExistsError):
                        os.link(temporary, file)
                finally:
                    temporary.unlink()
            key = file.read_bytes()
        if len(key) != _KEY_BYTES:
            raise StateError(f"{file}: holds {len(key)} bytes, a digest key has {_KEY_BYTES}; delete it for a new one")
        return key

    # -- accepted configs -----------------------------------------------------------------------------------------

    def stage(self, version: str, sources: Sequence[Source]) -> StagedConfig:
        """Write these texts beside the kept ones and forget nothing yet. Raises StateError.

        What was last-good becomes the previous one only where both the texts and the version differ: applying the
        same file twice, or an edited comment, must not take away what `rollback` would go back to.
        """
        documents = [(os.path.join(source.base_dir, os.path.basename(source.path)), source.text) for source in sources]
        digest = hashlib.sha256()
        for path, text in documents:
            digest.update(b"%d %d " % (len(path.encode()), len(text)) + path.encode() + text)
        name = digest.hexdigest()[:16]
        folder = self.path / _CONFIGS / name
        files = [f"{number}-{_plain_name(path)}" for number, (path, _) in enumerate(documents)]
        with self._plainly(folder):
            self._make(folder)
            for file, (_, text) in zip(files, documents, strict=True):
                self._replace(folder / file, text)
        entry: dict[str, object] = {
            "folder": name,
            "version": version,
            "kept_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            "documents": [{"path": path, "file": file} for (path, _), file in zip(documents, files, strict=True)],
        }
        return StagedConfig(version, entry, lambda: self._commit(entry))

    def keep(self, version: str, sources: Sequence[Source]) -> None:
        """Keep these texts as the last-good ones: `run` calls it once it serves. Raises StateError."""
        self.stage(version, sources).commit()

    def last_good(self) -> Kept | None:
        """The config that was applied last; None where nothing is kept. Raises StateError."""
        return self._kept("last_good")

    def previous(self) -> Kept | None:
        """The config that the last-good one replaced (R15). Raises StateError."""
        return self._kept("previous")

    def last_good_path(self) -> Path | None:
        """The main file of the last-good config, for a message; None where nothing usable is kept."""
        try:
            kept = self.last_good()
        except StateError:
            return None
        return kept.files[0] if kept is not None else None

    def _commit(self, entry: Mapping[str, object]) -> None:
        index = self._index()
        last_good = index.get("last_good")
        moved = isinstance(last_good, dict) and all(last_good.get(k) != entry[k] for k in ("folder", "version"))
        following = {
            "form": _FORM,
            "last_good": dict(entry),
            "previous": last_good if moved else index.get("previous"),
        }
        file = self.path / _CONFIGS / _INDEX
        with self._plainly(file):
            self._replace(file, json.dumps(following, indent=2, ensure_ascii=False).encode())
        used = {found["folder"] for found in (following["last_good"], following["previous"]) if isinstance(found, dict)}
        self._forget_all_but(used)

    def _index(self) -> dict[str, object]:
        file = self.path / _CONFIGS / _INDEX
        try:
            with self._plainly(file):
                index = json.loads(file.read_bytes()) if file.exists() else {}
        except ValueError:
            index = {}  # a damaged index is as none: both configs are offered again after the next apply
        if not isinstance(index, dict):
            return {}
        if index.get("form", _FORM) != _FORM:
            raise StateError(f"{file}: was written by another version of iop-edge; move it away")
        return index

    def _kept(self, which: str) -> Kept | None:
        entry = self._index().get(which)
        if not isinstance(entry, dict):
            return None
        try:
            folder = self.path / _CONFIGS / str(entry["folder"])
            files = tuple(folder / str(document["file"]) for document in entry["documents"])
            documents = tuple(
                (str(document["path"]), file.read_bytes().decode())
                for document, file in zip(entry["documents"], files, strict=True)
            )
            return Kept(str(entry["version"]), str(entry["kept_at"]), documents, files) if documents else None
        except FileNotFoundError:
            return None
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise StateError(f"{self.path / _CONFIGS}: the kept config is damaged ({type(error).__name__})") from None

    def _forget_all_but(self, used: set[object]) -> None:
        # A folder that stays behind costs nothing but its bytes: no reason to fail.
        with contextlib.suppress(OSError):
            for folder in (self.path / _CONFIGS).iterdir():
                if folder.is_dir() and folder.name not in used:
                    for file in folder.iterdir():
                        file.unlink()
                    folder.rmdir()

    # -- where the Edge is ----------------------------------------------------------------------------------------

    def write_runtime(self, admin: str) -> None:
        """Say where the admin API is, for the commands of this machine. Raises StateError."""
        file = self.path / _RUNTIME_FILE
        with self._plainly(file):
            self._make(self.path)
            self._replace(file, json.dumps({"admin": admin, "pid": os.getpid()}).encode() + b"\n")

    def remove_runtime(self) -> None:
        """Take it back, unless another Edge has written its own since; never raises."""
        found = self.read_runtime()
        if found is not None and found.pid == os.getpid():
            with contextlib.suppress(OSError):
                (self.path / _RUNTIME_FILE).unlink()

    def read_runtime(self) -> RuntimeInfo | None:
        """Return what a running Edge wrote; None where there is nothing that can be read."""
        try:
            found = json.loads((self.path / _RUNTIME_FILE).read_bytes())
            return RuntimeInfo(admin=str(found["admin"]), pid=int(found["pid"]))
        except (OSError, ValueError, KeyError, TypeError):
            return None

    # -- files ----------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _plainly(self, file: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise StateError(f"{error.filename or file}: {error.strerror or type(error).__name__}") from None

    @staticmethod
    def _make(folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def _replace(self, file: Path, content: bytes) -> None:
        """Write a whole file of mode 0600 under another name, then give it its own."""
        temporary = self._write_temporary(file, content)
        try:
            os.replace(temporary, file)
        except BaseException:
            temporary.unlink()
            raise

    @staticmethod
    def _write_temporary(file: Path, content: bytes) -> Path:
        temporary = file.with_name(f".{file.name}.{os.getpid()}.{secrets.token_hex(4)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            with open(descriptor, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())  # after a power cut the name must not lead to an empty file
        except BaseException:
            temporary.unlink()
            raise
        return temporary


def _plain_name(path: str) -> str:
    """A file's own name without what a shell or a file system would stumble over (`<inline>`)."""
    return re.sub(r"[^A-Za-z0-9._-]", "", os.path.basename(path))[-100:] or "config.yaml"


_STATE_DIR = re.compile(rb"""^[^#\n]*\bstate_dir:[ \t]*(?:"([^"$\n]+)"|'([^'$\n]+)'|([^\s"'#,}$]+))""", re.MULTILINE)


def _scan_state_dir(main: Path) -> str:
    """The value of the one key `state_dir` in a text that is no config at the moment; empty where it is not plain."""
    try:
        found = _STATE_DIR.search(main.read_bytes())
    except OSError:
        return ""
    return os.fsdecode(next(filter(None, found.groups()))) if found is not None else ""
