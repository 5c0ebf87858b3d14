"""Maps from tokens to documents and back, memory-mapped: how they are made, and what they answer."""
