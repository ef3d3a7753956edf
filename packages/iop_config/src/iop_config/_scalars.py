"""Single values by the type that their field asks: YAML 1.2 core, nothing coerced (C18)."""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from iop_config._nodes import Node
from iop_config._values import Secret, SensitiveInt, plain


class Wrong(NamedTuple):
    """What is wrong with a value, and what would be right."""

    message: str
    suggestion: str


DIGITS_MAX: Final = 18  # more cannot be within any bound; converting thousands of digits costs time

_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]*)")
_LEADING_ZERO = re.compile(r"[-+]?0[0-9]+")
_OTHER_BASE = re.compile(r"[-+]?0[oxb][0-9a-fA-F_]+")
_UNDERSCORES = re.compile(r"[-+]?[0-9]+(?:_[0-9]+)+")
_FLOAT = re.compile(
    r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)"
)
_NULLS = frozenset(("", "~", "null", "Null", "NULL"))
_TRUE = frozenset(("true", "True", "TRUE"))
_FALSE = frozenset(("false", "False", "FALSE"))
_LIKE_BOOLEANS = frozenset(("yes", "no", "on", "off", "y", "n"))
_MAY_BE_ANOTHER = frozenset("0123456789+-.~nNtTfF")  # what every null, boolean and number begins with


def kind_of(node: Node) -> str:
    """Return what YAML 1.2 takes a single value for: text, null, boolean or number."""
    value = node.value
    if not node.plain or type(value) is not str:
        return "text"
    if not value:
        return "null"
    if value[0] not in _MAY_BE_ANOTHER:
        return "text"
    if value in _NULLS:
        return "null"
    if value in _TRUE or value in _FALSE:
        return "boolean"
    return "number" if _FLOAT.fullmatch(value) or re.fullmatch(r"0o[0-7]+|0x[0-9a-fA-F]+", value) else "text"


def text(node: Node) -> Wrong | None:
    """Return what keeps a single value from being a text, or None."""
    kind = kind_of(node)
    if kind == "text":
        return None
    if kind == "null":
        return Wrong("nothing stands where a text is asked", "write it, or remove the key")
    return Wrong(f"a {kind} stands where a text is asked", "quote it")


def integer(node: Node) -> int | Wrong:
    """Return the whole number that a single value is; a `SensitiveInt` where it was injected."""
    value = plain(node.text)
    injected = isinstance(node.value, Secret)
    if injected:
        value = value.strip()
    if not node.plain and not injected:
        if _INTEGER.fullmatch(value):
            return Wrong("a quoted text stands where a whole number is asked", "remove the quotes")
        return Wrong("a text stands where a whole number is asked", "write digits")
    if _INTEGER.fullmatch(value):
        if len(value) > DIGITS_MAX:
            return Wrong(f"a number of {len(value)} digits is too large", f"at most {DIGITS_MAX} digits are read")
        return SensitiveInt(value) if injected else int(value)
    if _LEADING_ZERO.fullmatch(value):
        return Wrong("a number with a leading zero", "write it without")
    if _OTHER_BASE.fullmatch(value):
        return Wrong("a number that is not decimal", "write it in decimal digits")
    if _UNDERSCORES.fullmatch(value):
        return Wrong("a number with underscores", "write digits alone")
    if _FLOAT.fullmatch(value):
        return Wrong("a fraction stands where a whole number is asked", "write digits alone")
    if value in _NULLS:
        return Wrong("nothing stands where a whole number is asked", "write it, or remove the key")
    if value in _TRUE or value in _FALSE or value.lower() in _LIKE_BOOLEANS:
        return Wrong("a boolean stands where a whole number is asked", "write digits")
    return Wrong("a text stands where a whole number is asked", "write digits")


def boolean(node: Node) -> bool | Wrong:
    """Return the boolean that a single value is."""
    value = plain(node.text)
    injected = isinstance(node.value, Secret)
    if injected:
        value = value.strip()
    if value in _TRUE or value in _FALSE:
        if not node.plain and not injected:
            return Wrong("a quoted text stands where true or false is asked", "remove the quotes")
        return value in _TRUE
    if value.lower() in _LIKE_BOOLEANS:
        right = "true" if value.lower() in ("yes", "on", "y") else "false"
        return Wrong("this word is a text in YAML 1.2, and true or false is asked", f"write {right}")
    if value in _NULLS and node.plain:
        return Wrong("nothing stands where true or false is asked", "write it, or remove the key")
    if _FLOAT.fullmatch(value):
        return Wrong("a number stands where true or false is asked", "write true or false")
    return Wrong("a text stands where true or false is asked", "write true or false")
