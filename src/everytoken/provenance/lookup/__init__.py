"""Where documents, streams and runs are stored, and what is stored about them."""
