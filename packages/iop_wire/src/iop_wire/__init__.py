"""The Edge-Node wire: generated protobuf messages, the protocol version and the framing both ends share."""
