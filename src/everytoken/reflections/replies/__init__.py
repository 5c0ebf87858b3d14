"""What a generator replied: JSON amid prose, required fields, leaks, citations."""
