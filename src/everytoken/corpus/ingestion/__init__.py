"""Ingestion: a source, the plan of its shards, the rules of quality, and the part function that reads them."""
