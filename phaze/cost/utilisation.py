"""Model FLOPs utilisation (Chowdhery et al., PaLM, Appendix B): throughput over what the peak would allow.

Only the FLOPs that the model needs count: 6 N a token for the matrix multiplications with N parameters,
forward and backward, and 12 L H Q T for attention over T tokens in L layers of H heads of size Q.
Recomputation does not count.
"""


def peak_flops_per_s(num_tc: int, pe_x: int, pe_y: int, clock_hz: float) -> float:
    """Peak of a device's tensor cores: two FLOPs for each multiply-accumulate unit and cycle."""
    return 2.0 * num_tc * pe_x * pe_y * clock_hz


def model_flops_utilisation(tokens_per_s: float, token_flops: float, peak: float) -> float:
    """Share of the peak, in FLOPs per second of all devices, that the model's own FLOPs take."""
    return tokens_per_s * token_flops / peak
