"""How a record becomes a document: `renderers`; for chats `chats` (any shape to turns) and `templates` (to text)."""
