"""Exposure: from a document or a phrase to the steps that trained on it."""
