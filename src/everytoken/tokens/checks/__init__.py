"""Checks of stored streams and raw shards against what was written."""
