"""Ordering on disk: grouping, sorting and shuffling of more rows than fit into memory."""
