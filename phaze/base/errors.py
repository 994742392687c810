"""The exception for errors in user input."""


class PhazeError(Exception):
    """Input that phaze cannot use; the message names the file, the key, the value and the allowed values."""
