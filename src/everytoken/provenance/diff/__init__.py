"""Diff: two builds or releases compared, by document, stream and parameter."""
