"""The model to train: a transformer, whatever its family, or a model of images (`spec.vision`)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self, TypeAlias

from pydantic import model_validator

from phaze.base.errors import PhazeError
from phaze.spec.files import read_mapping
from phaze.spec.huggingface import translate
from phaze.spec.noun import Noun
from phaze.spec.plain import read_json
from phaze.spec.values import Flag, Name, PositiveInt, Seed, Share
from phaze.spec.vision import ResNet, SemanticFpn, Swin

UNLIMITED_SEQUENCE = 2048
"""Tokens of a sample of a model without longest sequence, unless they are given."""


class Model(Noun):
    """A transformer as it is trained: embedding, equal blocks, head."""

    name: Name
    """Name of the model; by default that of its file."""
    layers: PositiveInt
    """Transformer blocks, L."""
    hidden: PositiveInt
    """Width of the residual stream, h."""
    heads: PositiveInt
    """Attention heads, a."""
    key_value_heads: PositiveInt | None = None
    """Heads of keys and values; as many as `heads` unless given."""
    head_size: PositiveInt | None = None
    """Width of a head; hidden / heads unless given."""
    feed_forward: PositiveInt
    """Width of the feed-forward network."""
    vocabulary: PositiveInt
    """Tokens in the vocabulary, padded as it is trained."""
    embedding_width: PositiveInt | None = None
    """Width of the word embedding; `hidden` unless given, else projected in and out without bias."""
    positions: Literal["learned", "sinusoidal", "rotary", "none"] = "learned"
    """How a token knows its position."""
    position_count: Seed = 0
    """Longest sequence; with rotary positions the one that the model was made for, which may be exceeded."""
    position_offset: Seed = 0
    """Rows of the position table before the first position (OPT has 2)."""
    token_types: Seed = 0
    """Token types with an embedding (BERT has 2)."""
    activation: Literal["gelu", "relu", "silu"] = "gelu"
    """Activation of the feed-forward network."""
    gated: Flag = False
    """The feed-forward network multiplies two projections, one activated (Llama)."""
    norm: Literal["layer_norm", "rms_norm"] = "layer_norm"
    """Normalisation, with scale and bias or with scale only."""
    norm_position: Literal["pre", "post"] = "pre"
    """Normalise the input of attention and feed-forward network, or the residual sum after them."""
    embedding_norm: Flag = False
    """Normalise after the embedding."""
    final_norm: Flag = True
    """Normalise after the last block."""
    attention_bias: Flag = True
    """Biases of the attention projections."""
    feed_forward_bias: Flag = True
    """Biases of the feed-forward network."""
    fused_qkv: Flag = False
    """Queries, keys and values come from one matrix multiplication (GPT-2, Megatron)."""
    causal: Flag = True
    """A token attends only to those before it; the work is the same."""
    head: Literal["lm", "masked-lm", "none"] = "lm"
    """Loss: next token, masked tokens (with a transform before the decoder), or none."""
    tied_embeddings: Flag = True
    """The head's matrix is that of the word embedding."""
    head_transform: Flag = True
    """A dense layer with activation and norm before the decoder of head masked-lm."""
    sentence_head: Flag = False
    """With head masked-lm, the first token predicts the next sentence as it is, without pooler."""
    pooler: Flag = False
    """A dense layer with tanh on the first token; with head masked-lm it predicts the next sentence."""
    residual_dropout: Share = 0.0
    """Dropout before every residual sum."""
    attention_dropout: Share = 0.0
    """Dropout of the attention probabilities."""
    embedding_dropout: Share = 0.0
    """Dropout after the embedding."""
    hyper_operators: PositiveInt | None = None
    """K, up to which `partition` clusters the operators unless it is told another."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.head_size is None and self.hidden % self.heads:
            raise ValueError(
                f"heads {self.heads} must divide hidden {self.hidden}, unless head_size is given"
            )
        if self.heads % self.kv_heads:
            raise ValueError(f"key_value_heads {self.kv_heads} must divide heads {self.heads}")
        if self.fused_qkv and self.kv_heads != self.heads:
            raise ValueError(f"fused_qkv needs key_value_heads {self.kv_heads} equal to heads {self.heads}")
        needs_count = self.counts_positions and not self.position_count
        if needs_count or (self.positions == "none" and self.position_count):
            raise ValueError(
                f"position_count {self.position_count} must be > 0 with learned or sinusoidal positions and "
                f"0 without positions, positions are {self.positions!r}"
            )
        if self.position_offset and self.positions != "learned":
            raise ValueError(f"position_offset {self.position_offset} needs learned positions")
        if self.pooler and self.head == "lm":
            raise ValueError("pooler needs head masked-lm or none: next-token training does not use it")
        if self.sentence_head and (self.pooler or self.head != "masked-lm"):
            raise ValueError("sentence_head needs head masked-lm without pooler")
        if not self.head_transform and (self.head != "masked-lm" or self.projected):
            raise ValueError("head_transform: false needs head masked-lm and no embedding_width of its own")
        if self.positions == "rotary" and self.head_width % 2:
            raise ValueError(f"rotary positions need an even head width, it is {self.head_width}")
        return self

    @property
    def token(self) -> str:
        """Word for a token of a sample."""
        return "token"

    @property
    def counts_positions(self) -> bool:
        """Whether there are only so many positions."""
        return self.positions in ("learned", "sinusoidal")

    @property
    def usual_sequence(self) -> int:
        """Tokens of a sample unless they are given: the longest, or 2048 where there is none."""
        return self.position_count or UNLIMITED_SEQUENCE

    @property
    def kv_heads(self) -> int:
        """Heads of keys and values."""
        return self.key_value_heads or self.heads

    @property
    def head_width(self) -> int:
        """Width of a head."""
        return self.head_size or self.hidden // self.heads

    @property
    def query_width(self) -> int:
        """Width of all queries of a token."""
        return self.heads * self.head_width

    @property
    def kv_width(self) -> int:
        """Width of all keys of a token, and of all values."""
        return self.kv_heads * self.head_width

    @property
    def word_width(self) -> int:
        """Width of the word embedding."""
        return self.embedding_width or self.hidden

    @property
    def projected(self) -> bool:
        """Whether the word embedding is projected to the residual stream and back (OPT-350m)."""
        return self.word_width != self.hidden

    @property
    def position_rows(self) -> int:
        """Rows of the table of learned positions."""
        return self.position_count + self.position_offset if self.positions == "learned" else 0

    @property
    def parameters(self) -> int:
        """Number of parameters as published: tied embeddings once, without a masked-lm head."""
        final = self.norm_parameters(self.hidden) if self.final_norm else 0
        pooler = self.hidden * (self.hidden + 1) if self.pooler else 0
        lm = self.head == "lm"
        decoder = self.word_width * self.vocabulary if lm and not self.tied_embeddings else 0
        project_out = self.hidden * self.word_width if lm and self.projected else 0
        blocks = self.layers * self.block_parameters
        return self.embedding_parameters + blocks + final + pooler + decoder + project_out

    @property
    def embedding_parameters(self) -> int:
        """Parameters before the first block."""
        project_in = self.word_width if self.projected else 0
        norm = self.norm_parameters(self.hidden) if self.embedding_norm else 0
        return (
            self.word_width * self.vocabulary
            + self.hidden * (self.position_rows + self.token_types + project_in)
            + norm
        )

    @property
    def block_parameters(self) -> int:
        """Parameters of one block."""
        attention = self.hidden * 2 * (self.query_width + self.kv_width)
        attention_bias = self.query_width + 2 * self.kv_width + self.hidden
        inner = 2 if self.gated else 1
        feed_forward = (inner + 1) * self.hidden * self.feed_forward
        feed_forward_bias = inner * self.feed_forward + self.hidden
        return (
            attention
            + feed_forward
            + self.attention_bias * attention_bias
            + self.feed_forward_bias * feed_forward_bias
            + 2 * self.norm_parameters(self.hidden)
        )

    def norm_parameters(self, width: int) -> int:
        """Parameters of a normalisation of that width."""
        return (2 if self.norm == "layer_norm" else 1) * width

    def flops_per_token(self, sequence: int) -> float:
        """FLOPs that training needs for a token, 6N + 12LHQT, without recomputation.

        N parameters, L layers, H heads of width Q, T tokens in the sequence (Chowdhery et al. 2022, PaLM,
        Appendix B).
        """
        return 6.0 * self.parameters + 12.0 * self.layers * self.query_width * sequence

    def products_per_token(self, attended: float) -> float:
        """Multiply-accumulates of a token in a forward pass, when it attends to so many tokens; half of the
        sequence on average under a causal mask.
        """
        feed_forward = (3 if self.gated else 2) * self.hidden * self.feed_forward
        attention = 2 * self.hidden * (self.query_width + self.kv_width) + 2 * attended * self.query_width
        head = (self.head != "none") * self.word_width * self.vocabulary
        projections = 2 * self.projected * self.hidden * self.word_width
        return self.layers * (attention + feed_forward) + head + projections

    def divides(self, width: int) -> bool:
        """Whether blocks can be cut into that many slices."""
        return width > 0 and all(size % width == 0 for size in self._sliced().values())

    def _sliced(self) -> dict[str, int]:
        """Sizes that a TMP width divides."""
        return {"heads": self.heads, "key_value_heads": self.kv_heads, "feed_forward": self.feed_forward}

    def check_tensor_width(self, width: int, where: str) -> None:
        """Raise PhazeError unless blocks can be cut into that many slices; `where` says who asked."""
        for key, size in self._sliced().items():
            if width < 1 or size % width:
                raise PhazeError(
                    f"{where}: tensor: {width} must be > 0 and divide {key} {size} of model {self.name}"
                )

    def check_sequence(self, sequence: int, where: str) -> None:
        """Raise PhazeError unless the model has positions for that many tokens; `where` says who asked."""
        limit = self.position_count if self.counts_positions else sequence
        if not 1 <= sequence <= limit:
            raise PhazeError(
                f"{where}: sequence: {sequence} must be > 0 and at most position_count of model {self.name}, "
                f"which is {self.position_count or 'unlimited'}"
            )

    def check_chain(self, where: str) -> None:
        """Raise PhazeError unless every layer reads only the one before, which is so."""

    def without_head(self) -> Model:
        """Base model: without logits and loss, with the norm or pooler after its last block."""
        plain = {"head": "none", "head_transform": True, "sentence_head": False}
        return self.model_copy(update=plain)

    def distinct(self) -> Model:
        """Model with as few blocks as have all of its distinct layers, and without K."""
        return self.model_copy(update={"layers": 1, "hyper_operators": None})


AnyModel: TypeAlias = Model | ResNet | SemanticFpn | Swin
"""What a spec can be of; all have a name, parameters, FLOPs, and what a study checks them for."""
KINDS: dict[str, type[Model | ResNet | SemanticFpn | Swin]] = {
    "transformer": Model,
    "resnet": ResNet,
    "semantic-fpn": SemanticFpn,
    "swin": Swin,
}
"""Kinds of models; a spec that says none is of a transformer."""


def parse_model(fields: dict[str, object], source: str) -> AnyModel:
    """Model of the fields of a spec, whatever its kind; raises PhazeError.

    A spec runs no code: one that names a callable of PyTorch is refused.
    """
    if "torch" in fields:
        raise PhazeError(
            f"{source}: torch: names code, which a spec must not run; "
            f"`python -m phaze trace {source} --run-code` runs it and writes the graph of its operators"
        )
    kind = fields.get("kind", "transformer")
    if not isinstance(kind, str) or kind not in KINDS:
        raise PhazeError(f"{source}: kind: must be one of {', '.join(KINDS)}, got {kind!r}")
    own = {key: value for key, value in fields.items() if key != "kind" or kind != "transformer"}
    return KINDS[kind].parse(own, source)


def load_model(path: str | Path, name: str | None = None) -> AnyModel:
    """Model of a YAML spec, or of a Hugging Face `config.json` as published.

    It is named by `name`, else by the spec, else by its file (a file called config.json by its folder).
    Raises PhazeError.
    """
    path = Path(path)
    is_json = path.suffix == ".json"
    fields = translate(read_json(path), str(path)) if is_json else read_mapping(path)
    given = {"name": name} if name else {}
    return parse_model({"name": _file_name(path), **fields, **given}, str(path))


def _file_name(path: Path) -> str:
    stem = path.resolve().parent.name if path.name == "config.json" else path.stem
    return re.sub(r"[^a-z0-9.-]+", "-", stem.lower()).strip("-.") or "model"
