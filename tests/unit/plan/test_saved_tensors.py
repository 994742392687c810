"""Stored tensors of layers, compared with those saved by autograd for reference layers, if PyTorch is
installed.
"""

from collections.abc import Callable

import pytest

from phaze.layout import Layout
from phaze.plan.layers.costs import layer_costs
from phaze.plan.machines import load_machine
from phaze.spec.model import Model
from phaze.workload.models import library_workload

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
Tensor = torch.Tensor
linear, half = torch.nn.functional.linear, torch.bfloat16

TOKENS = 128
SIZES = {
    "name": "reference", "layers": 1, "hidden": 512, "heads": 8, "key_value_heads": 2, "head_size": 64,
    "feed_forward": 1024, "vocabulary": 1000, "positions": "rotary", "activation": "silu", "gated": True,
    "norm": "rms_norm", "attention_bias": False, "feed_forward_bias": False, "tied_embeddings": False,
}  # fmt: skip
LATENT = {"query_rank": 192, "kv_rank": 128, "nope_size": 64, "rope_size": 32, "value_size": 64}
EXPERTS = {"count": 16, "per_token": 4, "width": 256, "shared_width": 256}
STATES = {"heads": 16, "head_size": 64, "state": 32, "groups": 2}
CASES = {
    "dense": {}, "norms of heads": {"qk_norm": "heads"}, "latent": {"latent": LATENT},
    "experts": {"experts": EXPERTS}, "latent and experts": {"latent": LATENT, "experts": EXPERTS},
    "state space": {"pattern": "mamba", "mamba": STATES},
}  # fmt: skip


def fused(forward: Callable, keeps: Callable) -> Callable:
    """Kernel that saves the inputs and output named by `keeps`, like fused kernels; gradients are zeros."""

    class Kernel(torch.autograd.Function):
        @staticmethod
        def forward(ctx: torch.autograd.Function, *inputs: Tensor) -> Tensor:
            output = forward(*inputs)
            ctx.like = inputs
            ctx.save_for_backward(*keeps(output, *inputs))
            return output

        @staticmethod
        def backward(ctx: torch.autograd.Function, _: Tensor) -> tuple[Tensor | None, ...]:
            return tuple(torch.zeros_like(x) if x.is_floating_point() else None for x in ctx.like)

    return Kernel.apply


def rows(x: Tensor) -> Tensor:
    """Statistics in single precision, one per row."""
    return torch.zeros(*x.shape[:-1], 1)


norm = fused(lambda x, w: x * w, lambda _, x, w: (x, w, rows(x)))
gate = fused(lambda a, b: a * b, lambda _, a, b: (a, b))
weighed = fused(lambda a, b, w: a * b * w[:, None], lambda _, a, b, w: (a, b, w))
core = fused(
    lambda q, _, v: q[..., :1] * v.repeat_interleave(q.shape[1] // v.shape[1], 1),
    lambda o, q, k, v: (q, k, v, o, rows(q)),
)
gather = fused(lambda x, places: x[places], lambda *both: both[-1:])
combine = fused(lambda y, x, places: x.index_add(0, places, y), lambda *all_of: all_of[-1:])
scan = fused(lambda x, _: x[:, : 16 * 64].clone(), lambda _, *read: read)
gated_norm = fused(lambda y, z, w: y * z * w, lambda _, y, z, w: (y, z, w, rows(y)))


class Layers:
    """Reference layers, with the weights that they create."""

    def __init__(self, fields: dict) -> None:
        self.fields, self.weights, self.hidden = fields, set(), fields["hidden"]

    def weight(self, *shape: int) -> Tensor:
        made = torch.nn.Parameter(torch.ones(*shape, dtype=half))
        self.weights.add(made.untyped_storage().data_ptr())
        return made

    def turned(self, x: Tensor) -> Tensor:
        """Rotary embedding, whose tables are not activations."""
        cos, sin = (self.weight(x.shape[-1]).detach() for _ in range(2))
        self.weights |= {table.untyped_storage().data_ptr() for table in (cos, sin)}
        return x * cos + x.roll(x.shape[-1] // 2, -1) * sin

    def normed(self, x: Tensor) -> Tensor:
        return norm(x, self.weight(x.shape[-1]))

    def dense(self, x: Tensor, wide: int) -> Tensor:
        return linear(x, self.weight(wide, x.shape[-1]))

    def attention(self, x: Tensor) -> Tensor:
        own = self.fields
        numbers = (own["heads"], own["key_value_heads"], own["key_value_heads"])
        q, k, v = (self.dense(x, n * own["head_size"]).view(TOKENS, n, -1) for n in numbers)
        if own.get("qk_norm"):
            q, k = self.normed(q), self.normed(k)
        return self.dense(core(self.turned(q), self.turned(k), v).view(TOKENS, -1), self.hidden)

    def latent(self, x: Tensor) -> Tensor:
        own, heads = self.fields["latent"], self.fields["heads"]
        nope, rope, value, rank = (own[f"{n}"] for n in ("nope_size", "rope_size", "value_size", "kv_rank"))
        q = self.dense(self.normed(self.dense(x, own["query_rank"])), heads * (nope + rope))
        q = q.view(TOKENS, heads, -1)
        q = torch.cat((q[..., :nope], self.turned(q[..., nope:])), -1)
        low = self.dense(x, rank + rope)
        both = self.dense(self.normed(low[:, :rank]), heads * (nope + value)).view(TOKENS, heads, -1)
        one = self.turned(low[:, None, rank:]).expand(TOKENS, heads, rope)
        k = torch.cat((both[..., :nope], one), -1)
        return self.dense(core(q, k, both[..., nope:].contiguous()).view(TOKENS, -1), self.hidden)

    def state_space(self, x: Tensor) -> Tensor:
        own = self.fields["mamba"]
        inner, beside = own["heads"] * own["head_size"], 2 * own["groups"] * own["state"]
        sizes = (inner, inner + beside, own["heads"])
        z, mixed, steps = self.dense(x, sum(sizes)).split(sizes, -1)
        return self.dense(gated_norm(scan(mixed, steps), z, self.weight(inner)), self.hidden)

    def network(self, x: Tensor, wide: int) -> Tensor:
        return self.dense(gate(self.dense(x, wide), self.dense(x, wide)), self.hidden)

    def experts(self, x: Tensor) -> Tensor:
        own = self.fields["experts"]
        score = self.dense(x, own["count"]).float().softmax(-1)
        score, choice = score.topk(own["per_token"], -1)
        order = choice.flatten().argsort()
        weights = (score / score.sum(-1, keepdim=True)).to(half).flatten()[order]
        places = order // own["per_token"]
        counts = torch.bincount(choice.flatten(), minlength=own["count"]).tolist()

        def grouped(y: Tensor, wide: int) -> Tensor:
            return torch.cat([self.dense(some, wide) for some in y.split(counts)])

        y = gather(x, places)
        y = grouped(weighed(grouped(y, own["width"]), grouped(y, own["width"]), weights), self.hidden)
        return combine(y, torch.zeros_like(x), places) + self.network(x, own["shared_width"])

    def block(self, x: Tensor) -> Tensor:
        if "mamba" in self.fields:
            return x + self.state_space(self.normed(x))
        x = x + (self.latent if "latent" in self.fields else self.attention)(self.normed(x))
        y = self.normed(x)
        return x + (self.experts(y) if "experts" in self.fields else self.network(y, 1024))


def saved_bytes(fields: dict) -> float:
    """Bytes per token of all storages saved by autograd, without weights and tables."""
    layers, seen = Layers(fields), {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        seen[storage.data_ptr()] = storage
        return tensor

    x = torch.randn(TOKENS, fields["hidden"]).to(half).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        layers.block(x)
    return sum(one.nbytes() for place, one in seen.items() if place not in layers.weights) / TOKENS


@pytest.mark.parametrize("name", CASES)
def test_layers_keep_what_autograd_saves(name: str) -> None:
    """Equal except for a router's stored choices, which are less than 1 %."""
    dropped = ("key_value_heads", "head_size") if "latent" in CASES[name] else ()
    fields = {key: value for key, value in (SIZES | CASES[name]).items() if key not in dropped}
    model = Model.parse(fields, name)
    workload = library_workload(model, TOKENS, Layout())
    cost = layer_costs(workload, load_machine("h100", stack="megatron-core-2024"), flash=True)[
        next(iter(model.blocks))
    ]
    tolerance = 0.01 if "experts" in fields else 0.0
    assert cost.layer.activation_bytes / TOKENS == pytest.approx(saved_bytes(fields), rel=tolerance, abs=0)
