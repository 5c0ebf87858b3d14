"""Which documents are in a batch, and which steps saw a document."""
