"""Whether a release is whole, agrees with itself, and is what given streams were made of."""
