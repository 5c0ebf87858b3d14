"""A tokenizer: where it comes from, what its file holds, the pieces that it cuts text into."""
