"""Place: the layers of a model on the devices of a cluster, in the three ways of parallel training."""

from phaze.place.expert import Expert
from phaze.place.model import place_model
from phaze.place.point import Conditions

__all__ = ["Conditions", "Expert", "place_model"]
