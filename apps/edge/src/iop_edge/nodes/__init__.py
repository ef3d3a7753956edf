"""The Edge's side of the wire: who is connected, one session per Node, runs sent and their events."""
