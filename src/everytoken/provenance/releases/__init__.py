"""A corpus without its text, in a folder that rebuilds it: how it is written and how it is read."""
