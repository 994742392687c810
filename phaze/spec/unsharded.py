"""Models without tensor parallelism."""

from phaze.base.errors import PhazeError
from phaze.spec.noun import Noun
from phaze.spec.values import Count, Name


class UnshardedModel(Noun):
    """Model whose layers run one after another and cannot be sharded."""

    name: Name
    """Name of the model; default: the file name."""
    hyper_operators: Count | None = None
    """K, the target number of clusters that `partition` merges operators into; its option overrides this."""

    def divides(self, width: int) -> bool:
        """True only for a tensor-parallel width of 1, since the layers cannot be sharded."""
        return width == 1

    def check_tensor_width(self, width: int, where: str) -> None:
        """Raise PhazeError unless the tensor-parallel width is 1; `where` names the source."""
        if not self.divides(width):
            raise PhazeError(
                f"{where}: tensor: {width} must be 1: model {self.name} has no tensor parallelism"
            )

    def check_chain(self, where: str) -> None:
        """Raise PhazeError unless every layer reads only the previous one; `where` names the source."""
