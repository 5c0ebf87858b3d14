"""Everytoken: language-model training data, exact to the token.
 Public text becomes documents, scored documents, token streams and trained models through Kedro pipelines, so exactly
that anyone can rebuild every document and every token of every batch, and can ask of any token where it came from.
"""

__version__ = "0.2.0"
