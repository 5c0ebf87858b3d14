"""Streams of windows and raw shards: how they are written and how they are opened."""
