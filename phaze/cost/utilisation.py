"""Model FLOPs utilisation: throughput relative to the peak of a precision.

Only the FLOPs that the model needs count, without recomputation (`spec.flops.TokenFlops`). `mfu` counts
products, with half of causal attention; `mfu_paper` is the definition of papers (Chowdhery et al., PaLM,
Appendix B).
"""


def peak_flops_per_s(num_tc: int, pe_x: int, pe_y: int, clock_hz: float) -> float:
    """Peak FLOP/s of a device's tensor cores: two FLOPs per multiply-accumulate unit and cycle."""
    return 2.0 * num_tc * pe_x * pe_y * clock_hz


def model_flops_utilisation(tokens_per_s: float, token_flops: float, peak: float) -> float:
    """Fraction of `peak`, the FLOPs per second of all devices, used by the model's own FLOPs."""
    return tokens_per_s * token_flops / peak
