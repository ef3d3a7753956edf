"""The loopback admin listener: refresh, rollback, status, config and explain for operators (R12, `wire.md` §3)."""
