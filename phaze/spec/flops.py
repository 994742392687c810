"""FLOPs of training, as utilisation counts them."""

from phaze.spec.noun import Noun


class TokenFlops(Noun):
    """FLOPs that training a model needs for a token, without recomputation, as two definitions count them."""

    needed: float
    """Two for each multiply-accumulate, forward and twice backward; of causal attention half. For `mfu`."""
    paper: float
    """6 N + 12 L H Q T as in PaLM, Appendix B, which papers' tables are made with. For `mfu_paper`."""
