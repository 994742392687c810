"""FLOPs of training, as used for model FLOPs utilisation."""

from phaze.spec.noun import Noun


class TokenFlops(Noun):
    """FLOPs to train a model on one token, without recomputation: for `mfu` and for `mfu_paper`."""

    needed: float
    """Forward 2 FLOPs per multiply-accumulate, backward 4; half of the scores of causal attention. For
    `mfu`."""
    paper: float
    """6 N + 12 L H Q T (PaLM, Appendix B), as in most papers' tables. For `mfu_paper`."""
