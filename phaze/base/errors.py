"""The exception for errors in user input."""


class PhazeError(Exception):
    """Error for input that phaze cannot use; it names the file, the key, the value and the allowed values."""

    def __init__(self, wrong: str, fix: str = "") -> None:
        super().__init__(wrong, fix)
        self.wrong = wrong
        """Description of the mistakes, one per line."""
        self.fix = fix
        """Advice on how to correct the input; empty if the allowed values make it clear."""

    def __str__(self) -> str:
        return "; ".join(filter(None, (self.wrong, self.fix)))

    def under(self, where: str) -> "PhazeError":
        """The same error, prefixed by its location, such as a file."""
        return PhazeError(f"{where}: {self.wrong}", self.fix)
