"""Checkpoints: the model in a folder, generations of a run, export and import."""
