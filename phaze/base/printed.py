"""Text for a terminal: no control characters, and no words that fill the screen."""

import re
import reprlib
from textwrap import fill
from typing import TextIO

UNSEEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\ud800-\udfff]"
)
"""Characters that move the cursor, colour or reverse text, or are invisible; not line ends and tabs."""
LONGEST_WORD, LONGEST_LINE = 300, 1000
"""Maximum length of a word and of a line in an error message."""
LONGEST_REMARK = 2000
"""Maximum length of a line in other messages, which may list all flags of a run."""
COLUMNS, PIPED = 80, 100
"""Widths to which sentences are wrapped: those of an answer; messages, and rows of tables in a pipe."""
LONGEST_KEY = 80
"""Maximum length of a key in a message, in characters."""
SHORT = reprlib.Repr()
SHORT.maxlevel, SHORT.maxstring, SHORT.maxother = 3, 100, 100
"""Limits on values in messages: nested aliases let a few lines of YAML expand beyond any memory."""


def short(value: object) -> str:
    """Format a value for a message, truncated to 80 characters."""
    text = SHORT.repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def printable(text: str) -> str:
    r"""Text with control characters escaped as in JSON, such as \u001b; JSON text stays equivalent."""
    return UNSEEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def wrapped(sentence: str, columns: int = COLUMNS, indent: int = 2) -> str:
    """Wrap a sentence to a width, never before a percent sign; later lines are indented."""
    joined, later = sentence.replace(" %", "\u00a0%"), " " * indent
    lines = fill(joined, columns, subsequent_indent=later, break_long_words=False, break_on_hyphens=False)
    return lines.replace("\u00a0%", " %")


def one_line(text: str) -> str:
    """Printable text on one line, with line ends and tabs escaped, such as for a comment in a file."""
    return printable(text).replace("\n", "\\n").replace("\t", "\\t")


def shortened(text: str, longest: int = LONGEST_LINE) -> str:
    """Printable message with overlong words and lines cut in the middle.

    The end stays because it names the allowed values.
    """
    text = printable(text)
    words = re.sub(rf"\S{{{LONGEST_WORD + 1},}}", lambda match: _cut(match[0], LONGEST_WORD), text)
    return "\n".join(_cut(line, longest) for line in words.split("\n"))


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: longest * 2 // 3]}...{text[-longest // 4 :]}"


class EscapedStream:
    """Standard output or error stream that makes text printable as it is written."""

    encoding = "utf-8"
    """Encoding offered to callers; characters that the terminal lacks are escaped."""

    def __init__(self, stream: TextIO, longest: int | None = None) -> None:
        self._stream, self._longest = stream, longest

    @property
    def unescaped(self) -> TextIO:
        """The underlying stream, for styled text whose characters are already printable."""
        return self._stream

    def write(self, text: str) -> int:
        """Write printable text, with lines shortened if the stream has a limit."""
        printed = printable(text) if self._longest is None else shortened(text, self._longest)
        encoding = self._stream.encoding or self.encoding
        self._stream.write(printed.encode(encoding, "backslashreplace").decode(encoding))
        return len(text)

    def __getattr__(self, name: str) -> object:
        """Delegate every other attribute to the stream."""
        return getattr(self._stream, name)
