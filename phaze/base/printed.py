"""Text as a terminal may have it: without control characters, and without words that fill the screen."""

import re
from typing import TextIO

UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
"""Characters that move the cursor, colour or turn text, or show nothing; not line ends and tabs."""
LONGEST_WORD, LONGEST_LINE = 300, 1000
"""Characters of a word and of a line of a mistake's message."""
LONGEST_REMARK = 2000
"""Characters of a line of other messages, which may name all flags of a run."""


def printable(text: str) -> str:
    r"""Text with control characters as JSON escapes them, such as \u001b; JSON stays the same JSON."""
    return UNSEEN.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def shortened(text: str, longest: int = LONGEST_LINE) -> str:
    """Printable message without the middle of words and lines that are too long: ends say what is allowed."""
    text = printable(text)
    words = re.sub(rf"\S{{{LONGEST_WORD + 1},}}", lambda found: _cut(found[0], LONGEST_WORD), text)
    return "\n".join(_cut(line, longest) for line in words.split("\n"))


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest * 2 // 3]}...{text[-longest // 4 :]}"


class EscapedStream:
    """Standard output or error whose text is made printable as it is written."""

    encoding = "utf-8"
    """Of what may be written; what the terminal lacks is escaped."""

    def __init__(self, stream: TextIO, longest: int | None = None) -> None:
        self._stream, self._longest = stream, longest

    def write(self, text: str) -> int:
        """Write text, its lines shortened where a longest one is given."""
        said = printable(text) if self._longest is None else shortened(text, self._longest)
        encoding = self._stream.encoding or self.encoding
        self._stream.write(said.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def __getattr__(self, name: str) -> object:
        """Anything else is the stream's own."""
        return getattr(self._stream, name)
