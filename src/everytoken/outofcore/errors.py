"""What can go wrong when rows are put in order on disk."""


class ShuffleError(Exception):
    """Rows and the order that they should get do not belong together."""
