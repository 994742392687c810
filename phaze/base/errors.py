"""The one exception that a user's input can cause."""


class PhazeError(Exception):
    """Input that phaze cannot use; its message names the file, the key, the value and what is allowed."""
