"""Vocabulary sizes of Megatron-LM's tokenizers, derived from flags."""

from __future__ import annotations

from pathlib import PurePosixPath

from phaze.base.errors import PhazeError
from phaze.runtimes.flags import Flags, one_value, whole_number

SIZE, FILE, MERGES = "--vocab-size", "--vocab-file", "--merge-file"
KIND, MODEL, EXTRA = "--tokenizer-type", "--tokenizer-model", "--vocab-extra-ids"
MULTIPLE = "--make-vocab-size-divisible-by"
VOCABULARY_FLAGS = (SIZE, FILE, MERGES, KIND, MODEL, EXTRA, MULTIPLE)
GPT2, CASED, UNCASED = 50257, 28996, 30522
KINDS = {"gpt2bpetokenizer": GPT2, "bertwordpiececase": CASED, "bertwordpiecelowercase": UNCASED}
"""Vocabulary sizes of the tokenizer types that imply one."""
NAMED = (
    ("nemotron_2_256k", 256000), ("multimixv8.gpt4o_nc_sd.500000.128k", 131072), ("nemotron-3", 131072),
    ("nemotron-h", 131072), ("llama-3", 128256), ("llama3", 128256), ("llama-4", 202048),
    ("llama-2", 32000), ("llama2", 32000), ("mixtral", 32000), ("mistral-7b", 32000), ("qwen3.5", 248320),
    ("qwen3", 151936), ("qwen2", 151936), ("deepseek-v3", 129280), ("deepseek-v2", 102400),
    ("deepseek-r1", 129280), ("kimi-k2", 163840), ("gpt-oss", 201088), ("glm-4.5", 151552),
    ("minimax-m2", 200064), ("gpt2", GPT2),
)  # fmt: skip
"""Vocabulary sizes by a substring of the tokenizer's path or name; the first match is used.

They are `vocab_size` of the models' published configurations, or of the tokenizer's file.
"""


def is_word_piece(flags: Flags) -> bool:
    """True if the vocabulary is BERT's, judged by tokenizer type or by the name of its file."""
    kind, file = (" ".join(flags.get(flag, ())).lower() for flag in (KIND, FILE))
    return kind.startswith("bertwordpiece") or (not kind and file.endswith("vocab.txt"))


def vocabulary(flags: Flags, given: int | None = None) -> int:
    """Vocabulary size, padded as the flags require; `given` is the size if no flag sets it.

    Raises PhazeError if flags have neither the size nor a known tokenizer name.
    """
    words = _words(flags, given) + (whole_number(flags, EXTRA) if EXTRA in flags else 0)
    multiple = whole_number(flags, MULTIPLE, 1) * whole_number(flags, "--tensor-model-parallel-size", 1)
    return -(-words // multiple) * multiple if MULTIPLE in flags else words


def _words(flags: Flags, given: int | None) -> int:
    if SIZE in flags:
        return whole_number(flags, SIZE)
    if given is not None:
        return given
    kind = one_value(flags, KIND).lower() if KIND in flags else ""
    paths = " ".join((*flags.get(MODEL, ()), *flags.get(FILE, ()))).lower()
    file = PurePosixPath(one_value(flags, FILE)).name.lower() if FILE in flags else ""
    if kind in KINDS:
        return KINDS[kind]
    if not kind and file.endswith("vocab.txt"):
        return CASED if "cased" in file.replace("uncased", "") else UNCASED
    if not kind and file == "vocab.json" and MERGES in flags:
        return GPT2
    found = next((size for name, size in NAMED if name in paths), None)
    if found is None:
        raise PhazeError(
            f"{SIZE}: must be given, or --vocab N of `phaze read`: the tokenizer is missing or its "
            "vocabulary unknown"
        )
    return found
