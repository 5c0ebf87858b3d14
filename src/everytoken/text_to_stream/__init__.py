"""``everytoken tokenize``: text files become one stream, without a project."""
