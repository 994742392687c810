"""Models of which no layer is cut by tensor parallelism."""

from phaze.base.errors import PhazeError
from phaze.spec.noun import Noun
from phaze.spec.values import Count, Name


class Uncut(Noun):
    """A model whose layers run whole, one after the other."""

    name: Name
    """Name of the model; by default that of its file."""
    hyper_operators: Count | None = None
    """K, up to which `partition` clusters the operators unless it is told another."""

    def divides(self, width: int) -> bool:
        """Whether layers can be cut into that many slices: only into one."""
        return width == 1

    def check_tensor_width(self, width: int, where: str) -> None:
        """Raise PhazeError unless layers can be cut into that many slices; `where` says who asked."""
        if not self.divides(width):
            raise PhazeError(f"{where}: tensor: {width} must be 1, model {self.name} is not cut into slices")

    def check_chain(self, where: str) -> None:
        """Raise PhazeError unless every layer reads only the one before; `where` says who asked."""
