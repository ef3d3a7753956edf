"""The protocol versions this build speaks and the capabilities it announces; written by hand."""

PROTOCOL_MIN = 1
PROTOCOL_MAX = 1
CAPABILITIES: tuple[str, ...] = ()
