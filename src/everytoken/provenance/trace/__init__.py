"""Trace: from a token of a batch to the document that it came from."""
