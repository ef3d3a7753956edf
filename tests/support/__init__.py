"""Fakes, builders and markers that several test folders share."""
