"""JSON Schema of the file, for editors, made from the config classes (C20)."""

from __future__ import annotations

from collections.abc import Iterator

from iop_config._fields import ConfigObject, FieldInfo, Format, Shape
from iop_config._model import TYPES, AdapterConfig, EdgeConfig, ProviderConfig
from iop_config._values import FrozenMap

Schema = dict[str, object]

_PATTERNS = {
    Format.ADDRESS: r"^.+:[0-9]{1,5}$",
    Format.URL: r"^[Hh][Tt][Tt][Pp][Ss]?://",
    Format.SHA256: r"^[0-9A-Fa-f]{64}$",
    Format.HEADER: r"^[!#$%&'*+.^_`|~0-9A-Za-z-]+$",
    Format.ENV_NAME: r"^[A-Za-z_][A-Za-z0-9_]*$",
    Format.ORIGIN: r"^(\*|[a-z][a-z0-9+.-]*://[^/]+)$",
}
_INJECTED: Schema = {"$ref": "#/$defs/injected"}
_OVERRIDES = ("context_size", "request_timeout_ms")  # these a provider may set beside `adapter` too (C24)


def schema() -> Schema:
    """Return the JSON Schema (2020-12) of an Edge config file.

    It knows types, bounds, choices, defaults, required and unknown keys, the older spellings (C9, C10), and that an
    injection `${…}` may stand for any value; each field has its refresh policy as `x-iop-policy`. What crosses places
    only loading can tell.
    """
    definitions: dict[str, Schema] = {}
    for item in sorted(set(_classes(EdgeConfig)), key=lambda cls: cls.__name__):
        definitions[item.__name__] = _object(item)
    definitions["LegacyAdapterConfig"] = _legacy_adapter()
    _add_provider_first(definitions[ProviderConfig.__name__])
    definitions["injected"] = {
        "description": "A value from the environment or a file: ${NAME}, ${NAME:-default}, ${NAME:?message}, "
        "${file:PATH}.",
        "type": "string",
        "pattern": r"\$\{[^}]*\}",
    }
    root = _object(EdgeConfig)
    root["patternProperties"] = {"^x-": {"description": "Yours: a place for anchors."}}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "IOP Edge config",
        **root,
        "$defs": definitions,
    }


def _classes(cls: type[ConfigObject]) -> Iterator[type[ConfigObject]]:
    for info in cls.__fields__.values():
        if info.item is not None:
            yield info.item
            yield from _classes(info.item)


def _object(cls: type[ConfigObject]) -> Schema:
    fields = [info for info in cls.__fields__.values() if not info.internal]
    properties: dict[str, object] = {}
    for info in fields:
        properties[info.name] = _field(info)
        for alias in info.aliases:
            properties[alias] = _alias(info)
    made: Schema = {"description": (cls.__doc__ or "").strip(), "type": "object", "properties": properties}
    required = [info.name for info in fields if info.required]
    if required:
        made["required"] = required
    made["additionalProperties"] = False
    return made


def _field(info: FieldInfo) -> Schema:
    made: Schema = {"description": info.doc, **_value(info), "x-iop-policy": info.policy.value}
    if info.members_policy is not None:
        made["x-iop-key"] = info.key
        made["x-iop-members-policy"] = info.members_policy.value
    default = _default(info)
    if default is not None:
        made["default"] = default
    return made


def _alias(info: FieldInfo) -> Schema:
    return {**_field(info), "description": f"The older name of `{info.name}`.", "deprecated": True}


def _default(info: FieldInfo) -> object:
    match info.default:
        case bool() | int() | str():
            return info.default
        case tuple():
            return list(info.default)
        case FrozenMap():
            return dict(info.default)
        case _:  # a section, none, or one that depends on other fields
            return None


def _value(info: FieldInfo) -> Schema:
    match info.shape:
        case Shape.INTEGER:
            return {"anyOf": [{"type": "integer", "minimum": info.ge, "maximum": info.le}, _INJECTED]}
        case Shape.BOOLEAN:
            return {"anyOf": [{"type": "boolean"}, _INJECTED]}
        case Shape.TEXT:
            return _text(info, info.format)
        case Shape.TEXTS:
            return {"type": "array", "items": _text(info, info.format)}
        case Shape.MAP:
            names = _pattern(info.key_format)
            return {
                "type": "object",
                **({"propertyNames": names} if names else {}),
                "additionalProperties": _text(info, info.format),
            }
        case Shape.SECTION:
            assert info.item is not None
            return {"$ref": f"#/$defs/{info.item.__name__}"}
        case Shape.MEMBERS:
            assert info.item is not None
            listed: Schema = {"type": "array", "items": {"$ref": f"#/$defs/{info.item.__name__}"}}
            return {"anyOf": [listed, _legacy_adapters()]} if info.item is AdapterConfig else listed


def _text(info: FieldInfo, form: Format) -> Schema:
    secret: Schema = {"writeOnly": True} if info.secret else {}
    if info.choices:
        return {"anyOf": [{"enum": list(info.choices)}, _INJECTED], **secret}
    pattern = _pattern(form)
    if not pattern:
        return {"type": "string", **secret}
    return {"anyOf": [{"type": "string", **pattern}, _INJECTED], **secret}


def _pattern(form: Format) -> Schema:
    if form is Format.NAME:
        return {"minLength": 1, "maxLength": 256}
    if form is Format.PATH:
        return {"minLength": 1}
    return {"pattern": _PATTERNS[form]} if form in _PATTERNS else {}


# --- the older spellings -----------------------------------------------------------------------------------------


def _legacy_adapters() -> Schema:
    """One instance per type, by its type (C10)."""
    return {
        "description": "The older form: one instance per type, named after its type.",
        "type": "object",
        "propertyNames": {"enum": list(TYPES)},
        "additionalProperties": {"$ref": "#/$defs/LegacyAdapterConfig"},
        "deprecated": True,
    }


def _legacy_adapter() -> Schema:
    made = _object(AdapterConfig)
    properties = made["properties"]
    assert isinstance(properties, dict)
    for key in ("name", "type"):
        del properties[key]
    del made["required"]
    return {**made, "description": "An adapter instance in the older form: the key above it is its type and name."}


def _add_provider_first(provider: Schema) -> None:
    """Let the fields of an adapter stand on a provider without `adapter` (C10), and none but two beside it (C24)."""
    properties = provider["properties"]
    assert isinstance(properties, dict)
    added: list[str] = []
    for info in AdapterConfig.__fields__.values():
        if not info.provider_first or info.name in properties:
            continue
        made = _field(info)
        made["description"] = f"Without `adapter`: {info.doc}"
        properties[info.name] = made
        added.append(info.name)
        for alias in info.aliases:
            properties[alias] = _alias(info)
            added.append(alias)
    assert not set(added) & set(_OVERRIDES)
    provider["dependentSchemas"] = {"adapter": {"properties": dict.fromkeys(added, False)}}


__all__ = ["schema"]
