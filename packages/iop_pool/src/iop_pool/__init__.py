"""Decide which provider runs a request and who waits for one: a sans-IO core with an async face."""
