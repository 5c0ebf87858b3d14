"""Documents that are taken down: which they are, and what that changes."""
