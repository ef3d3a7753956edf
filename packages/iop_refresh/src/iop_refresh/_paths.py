"""How a config path is spelled where no file says it: members by identity in brackets (`refresh.md` §4)."""

from __future__ import annotations

from iop_config import ConfigObject, ConfigPath, EdgeConfig, field_info

_AMBIGUOUS = frozenset("[].\"'\\ ")


def spell(path: ConfigPath) -> str:
    """Return `nodes[gpu-1].providers[vllm-a].capacity`; an identity that could be misread stands in quotes."""
    text = ""
    cls: type[ConfigObject] = EdgeConfig
    member = False
    for part in path:
        if member:
            text += f"[{_quoted(str(part))}]"
            member = False
            continue
        text += f".{part}" if text else str(part)
        info = field_info(cls).get(str(part))
        if info is not None and info.item is not None:
            cls = info.item
            member = info.key is not None
    return text


def _quoted(name: str) -> str:
    if name and name.isprintable() and not _AMBIGUOUS & set(name):
        return name
    escaped = name.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(c if c.isprintable() else f"\\u{ord(c):04x}" for c in escaped) + '"'
