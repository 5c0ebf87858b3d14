"""Decontamination: documents that contain word n-grams of evaluation sets."""
