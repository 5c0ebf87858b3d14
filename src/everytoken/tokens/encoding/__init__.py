"""Documents become ids: the encoder, the part function, what is counted, the report."""
