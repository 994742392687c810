r"""Training command of a shell script or of a list of flags, with its variables and arrays expanded.

Plain assignments of the file itself are expanded: `TP=8`, `ARGS=( … )`, `ARGS+=( … )`, `$TP`, `${TP:-8}`,
`${ARGS[@]}`. Whatever only a shell can know stays as it is written, `$1` or `$(nproc)`, so that a reader can
name it: parameters, command substitution, arithmetic, variables from outside or from a sourced file, and what
a conditional, loop or function sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import PurePath

from phaze.base.errors import PhazeError

CONDITIONAL, FIELD = "\x01", "\x00"
"""Prefix of flags that a conditional, loop or function sets; separator of words that are being expanded."""
# Possessive quantifiers (`*+`, `++`) do not backtrack, so that unclosed quotes or brackets cannot take
# exponential time.
_NESTED = r"\((?:[^()]++|\((?:[^()]++|\((?:[^()]++|\([^()]*+\))*+\))*+\))*+\)"
_SUBSTITUTION = rf"\${_NESTED}|`[^`]*+`"
_QUOTES = r"'(?P<single>[^']*+)'|\"(?P<double>(?:\\.|[^\"\\])*+)\""
_NAME = r"[A-Za-z_]\w*|\d"
_DEFAULT = r"(?::?[-=](?P<default>(?:[^{}]|\{[^{}]*+\})*+))?"
_VARIABLE = rf"\$(?:(?P<bare>{_NAME})|\{{(?P<name>{_NAME})(?P<whole>\[[@*]\])?{_DEFAULT}\}})"
_TOKEN = re.compile(
    rf"""(?P<blank>(?:[^\S\n]|\\\r?\n)++|\#[^\n]*+)
    |(?P<end>\n|;;?(?=\s|\Z)|(?:&&|\|\|?|&)(?=\s|\Z))
    |(?P<word>(?:\\.|{_SUBSTITUTION}|{_QUOTES}|\$\{{(?:[^{{}}]|\{{[^{{}}]*+\}})*+\}}|;(?!\s|\Z)|[^\s\\'"`;])++)""",
    re.VERBOSE | re.DOTALL,
)
_PIECE = re.compile(rf"{_QUOTES}|(?P<verbatim>{_SUBSTITUTION})|\\(?P<escaped>.)|{_VARIABLE}", re.DOTALL)
_QUOTED = re.compile(rf"(?P<verbatim>{_SUBSTITUTION})|\\(?P<escaped>[\"\\$`\n])|{_VARIABLE}", re.DOTALL)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(\(?)(.*)", re.DOTALL)
_REDIRECTION = re.compile(r"(?:\d*|&)(?:>>?|<<?<?)(.*)", re.DOTALL)
_FLAG = re.compile(r"(?<!\S)--(?=\w)")
_PROGRAM = re.compile(r"\.(?:py|sh)\b")
OPENS = ("if", "for", "while", "until", "case", "select", "function", "{")
CLOSES = ("fi", "done", "esac", "}")
DECLARES = ("export", "declare", "local", "readonly", "typeset", "then", "else", "do", "time", "!")
"""Words in front of a statement or an assignment, which are left out."""
LAUNCHERS = ("torchrun", "python", "python3", "srun", "ft_launcher", "deepspeed", "accelerate", "mpirun")
MOST_CHARACTERS = 1_000_000
"""Maximum length of an expanded variable."""
MOST_SCRIPTS = 4
"""Maximum depth of scripts inside scripts, as in `bash -c "…"`."""


def command_of(text: str) -> list[str]:
    """Words of the training command of a script, or of a list of flags; empty if there is none.

    A flag that is set conditionally has the prefix `CONDITIONAL`. Raises PhazeError for unclosed quotes and
    for several commands.
    """
    script = _Script()
    script.run(text)
    flagged = [words for words in script.commands if any(map(_is_flag, words))]
    commands = [words for words in flagged if any(map(is_program, words))] or flagged
    # A script may have the same command in two branches.
    commands = [words for place, words in enumerate(commands) if words not in commands[:place]]
    if len(commands) > 1:
        programs = ", ".join(next(filter(is_program, words), words[0])[:60] for words in commands[:4])
        raise PhazeError(
            f"flags: has {len(commands)} commands with flags: {programs}", "keep the one that trains"
        )
    return commands[0] if commands else []


def is_program(word: str) -> bool:
    """True if a word is the file of a program: a Python or shell script."""
    return word.endswith((".py", ".sh"))


@dataclass
class _Script:
    """Variables and commands of a script, filled by its statements in order."""

    variables: dict[str, list[str]] = field(default_factory=dict)
    commands: list[list[str]] = field(default_factory=list)
    blocks: int = 0
    """Number of conditionals, loops and functions around the present statement."""

    def run(self, text: str, scripts: int = 1) -> None:
        """Follow the statements of a text, and of scripts in its words."""
        follows = False
        for words, after_test in _statements(text):
            if words[0].startswith("--") and follows:  # goes on without a backslash at the end of the line
                self.commands[-1] += self._arguments(words)
                continue
            count = len(self.commands)
            command = self._arguments(self._assign(words, after_test))
            nested = [word for word in command if " " in word and _PROGRAM.search(word)]
            if nested and scripts < MOST_SCRIPTS:
                self.run("\n".join(nested), scripts + 1)
            elif command and (command[0].startswith("--") or any(map(_launches, command))):
                self.commands.append([self._marked(word) for word in command] if self.blocks else command)
            follows = len(self.commands) > count

    def _assign(self, words: list[str], after_test: bool) -> list[str]:
        """Make the assignments in front of a command, and return the command; none inside a condition."""
        while words:
            word, (assignment, remaining) = words[0], _assignment(words)
            if assignment is not None:
                self._set(assignment, conditional=bool(self.blocks) or after_test)
                words = remaining
            elif word in OPENS or word.endswith("()"):
                self.blocks += word in OPENS
                words = words[1:] if word == "{" or word.endswith("()") else []
            elif word in CLOSES:
                self.blocks = max(0, self.blocks - 1)
                words = words[1:]
            elif word in DECLARES or (self.blocks and word.endswith(")")):  # the pattern of a case
                words = words[1:]
            else:
                return words
        return []

    def _set(self, assignment: tuple[str, bool, bool, list[str]], *, conditional: bool) -> None:
        name, adds, is_array, parts = assignment
        values = [word for part in parts for word in self._expand(part)]
        values = values if is_array else [" ".join(values)]
        before = self.variables.get(name, [])
        # Which branch runs is unknown: the variable stays as it is written, so that a reader can name it.
        if conditional and not is_array and not _FLAG.search(values[0]):
            values = before if values == [""] and before in ([], [""]) else [f"${name}"]
        # Flags of a branch are marked, as are earlier ones that it may replace.
        elif conditional:
            replaced = [self._marked(word) for word in before if word not in values]
            values = [*(before if adds else replaced), *map(self._marked, values)]
        elif adds:
            values = [*before, *values] if is_array else ["".join([*before, *values])]
        if sum(map(len, values)) > MOST_CHARACTERS:
            raise PhazeError(f"flags: {name}: must have at most {MOST_CHARACTERS:,} characters")
        self.variables[name] = values or [""]

    def _arguments(self, words: list[str]) -> list[str]:
        """Words of a command after expansion, without redirections."""
        arguments: list[str] = []
        skips = False
        for word in words:
            redirection = _REDIRECTION.fullmatch(word)
            if redirection is None and not skips:
                arguments += self._expand(word)
            skips = redirection is not None and not redirection[1]
        return arguments

    def _expand(self, word: str) -> list[str]:
        """Words that result from a word once its quotes are removed and its variables expanded."""
        return [part for part in _PIECE.sub(self._piece, word).split(FIELD) if part]

    def _piece(self, piece: re.Match[str]) -> str:
        if piece["single"] is not None:
            return piece["single"]
        if piece["double"] is not None:
            return _QUOTED.sub(lambda part: self._plain(part, quoted=True), piece["double"])
        return self._plain(piece, quoted=False)

    def _plain(self, piece: re.Match[str], *, quoted: bool) -> str:
        """Text of an escaped character, a substitution or a variable."""
        if piece["escaped"] is not None:
            return piece["escaped"].strip("\n")
        name = piece["bare"] or piece["name"]
        if name is None:
            return piece["verbatim"]
        values = self.variables.get(name)
        if values in (None, [""]) and piece["default"] is not None:
            values = self._expand(piece["default"])
        if values is None:
            return piece[0]
        # In quotes, `${a[@]}` is a word per element and `$a` one word; without, values split at blanks.
        if quoted:
            return (FIELD if piece["whole"] else " ").join(values)
        return FIELD.join(" ".join(values).split())

    @staticmethod
    def _marked(text: str) -> str:
        return _FLAG.sub(f"{CONDITIONAL}--", text)


def _statements(text: str) -> Iterator[tuple[list[str], bool]]:
    """Yield the words of every statement as written, and whether it runs only after a test."""
    words: list[str] = []
    place, after_test, in_array = 0, False, False
    while place < len(text):
        token = _TOKEN.match(text, place)
        if token is None:
            raise PhazeError("flags: cannot be parsed as shell arguments: No closing quotation")
        place = token.end()
        if token["word"]:
            words.append(token["word"])
            in_array = (in_array or _opens_array(words[-1])) and not _closes_array(words[-1])
        elif token["end"] and not in_array:
            if words:
                yield words, after_test
            words, after_test = [], token["end"] in ("&&", "||")
    if words:
        yield words, after_test


def _opens_array(word: str) -> bool:
    match = _ASSIGNMENT.fullmatch(word)
    return match is not None and bool(match[3])


def _closes_array(word: str) -> bool:
    return word.endswith(")") and word.count(")") > word.count("(") - _opens_array(word)


def _assignment(words: list[str]) -> tuple[tuple[str, bool, bool, list[str]] | None, list[str]]:
    """Name, whether it adds, whether it is an array, and words of a first assignment; the words after it."""
    match = _ASSIGNMENT.fullmatch(words[0])
    if match is None:
        return None, words
    name, adds, is_array, first = match[1], bool(match[2]), bool(match[3]), match[4]
    if not is_array:
        return (name, adds, False, [first]), words[1:]
    end = next((i for i, word in enumerate(words) if _closes_array(word)), len(words) - 1)
    parts = [first, *words[1 : end + 1]]
    parts[-1] = parts[-1].removesuffix(")")
    return (name, adds, True, [part for part in parts if part]), words[end + 1 :]


def _is_flag(word: str) -> bool:
    return word.lstrip(CONDITIONAL).startswith("--")


def _launches(word: str) -> bool:
    return is_program(word) or PurePath(word).name in LAUNCHERS
