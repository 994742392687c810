"""The exception for errors in user input."""


class PhazeError(Exception):
    """Input that phaze cannot use; the message names the file, the key, the value and the allowed values."""

    def __init__(self, wrong: str, fix: str = "") -> None:
        super().__init__(wrong, fix)
        self.wrong = wrong
        """What is wrong; one line for each mistake."""
        self.fix = fix
        """What to do about it; empty if that follows from what is allowed."""

    def __str__(self) -> str:
        return "; ".join(filter(None, (self.wrong, self.fix)))

    def under(self, where: str) -> "PhazeError":
        """The same error in a place, such as a file."""
        return PhazeError(f"{where}: {self.wrong}", self.fix)
