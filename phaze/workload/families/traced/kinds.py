"""PyTorch's operators in the words of `workload.kinds`."""

from __future__ import annotations

VIEWS = frozenset(
    [
        "_reshape_alias",
        "_unsafe_view",
        "alias",
        "as_strided",
        "chunk",
        "expand",
        "lift_fresh",
        "narrow",
        "permute",
        "reshape",
        "select",
        "slice",
        "split",
        "split_with_sizes",
        "squeeze",
        "t",
        "transpose",
        "unbind",
        "unsqueeze",
        "view",
    ]
)
"""Show memory that is there."""

PRODUCTS = frozenset(("addmm", "baddbmm", "bmm", "convolution", "mm"))

_REARRANGING = [
    "_to_copy",
    "cat",
    "clone",
    "constant_pad_nd",
    "copy",
    "flip",
    "gather",
    "index",
    "index_select",
    "repeat",
    "roll",
    "stack",
]

KINDS = {
    **dict.fromkeys(_REARRANGING, "rearrange"),
    **dict.fromkeys(("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"), "batch_norm"),
    **dict.fromkeys(("native_layer_norm", "native_group_norm"), "layer_norm"),
    **dict.fromkeys(("mean", "sum", "avg_pool2d", "_adaptive_avg_pool2d"), "average_pool"),
    **dict.fromkeys(("hardswish", "sigmoid", "tanh"), "tanh"),
    **dict.fromkeys(("nll_loss_forward", "nll_loss2d_forward"), "nll_loss"),
    "_log_softmax": "log_softmax",
    "_softmax": "softmax",
    "embedding": "lookup",
    "gelu": "gelu",
    "masked_fill": "mask",
    "max_pool2d_with_indices": "max_pool",
    "native_dropout": "dropout",
    "relu": "relu",
    "silu": "silu",
    "upsample_bilinear2d": "upsample",
    "upsample_nearest2d": "nearest",
}
"""Operators that are what they are whatever they read."""

FRESH = frozenset(
    [
        "bernoulli",
        "empty",
        "empty_like",
        "full_like",
        "new_empty",
        "new_full",
        "new_ones",
        "new_zeros",
        "ones_like",
        "rand_like",
        "zeros_like",
    ]
)
"""Make constants of the shape of what they read."""

SUMS = frozenset(("add", "rsub", "sub"))
FACTORS = frozenset(("div", "mul"))
ASIDE = frozenset(("detach",))
"""Hand a tensor on without its gradient, for what is no part of the model."""
