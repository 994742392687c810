"""How many ranks and nodes the rows of a token go to, where each gets them once (DeepEP, HybridEP).

A token has k of E experts, which lie in equal parts on the ranks of a group, the ranks of a node beside each
other. With group-limited routing (DeepSeek-V3, arXiv 2412.19437, Section 2.1.2) experts are in G groups, of
which a token has K, and its k experts are among those of these K. All choices are taken as equally likely, as
the loads of balanced experts are.
"""

from dataclasses import dataclass
from math import comb

from phaze.base.errors import PhazeError
from phaze.cost.network.network import Levels, Network
from phaze.layout import Group


@dataclass(frozen=True)
class Routing:
    """Choice of the experts of a token."""

    experts: int
    """E."""
    per_token: int
    """k."""
    groups: int = 1
    """G, which hold as many experts each."""
    top_groups: int = 1
    """K, whose experts a token may have."""

    def __post_init__(self) -> None:
        if self.experts % self.groups or not 1 <= self.top_groups <= self.groups:
            raise PhazeError(
                f"routing: groups must divide experts {self.experts} and top_groups be at most groups, "
                f"got {self.groups} and {self.top_groups}"
            )
        if not 1 <= self.per_token <= self.eligible:
            raise PhazeError(f"routing: per_token must be 1 to {self.eligible}, got {self.per_token}")

    @property
    def eligible(self) -> int:
        """Experts in the groups of a token."""
        return self.experts // self.groups * self.top_groups

    def distinct(self, parts: int) -> float:
        """Mean number of parts in which a token has an expert, of so many equal ones that divide all experts.

        Without groups parts · (1 − C(E − E/parts, k) / C(E, k)).
        """
        own = max(self.experts // parts, 1)
        group = self.experts // self.groups
        inside, touched = min(own, group), max(own // group, 1)  # of one group, or of several whole ones
        choices = comb(self.groups, self.top_groups)
        missed = sum(
            comb(touched, hit)
            * comb(self.groups - touched, self.top_groups - hit)
            / choices
            * comb(self.eligible - hit * inside, self.per_token)
            / comb(self.eligible, self.per_token)
            for hit in range(min(touched, self.top_groups) + 1)
        )
        return parts * (1.0 - missed)


def dispatch_s(network: Network, size_bytes: float, group: Group, routing: Routing) -> float:
    """Time to bring rows to the ranks of their experts, or back, each row once to a rank.

    A rank hands rows on inside its node while others arrive: the slowest level counts (DeepEP, internode
    kernels).
    """
    longest_s = max(dispatch_by_level(network, size_bytes, group, routing))
    if not isinstance(network, Levels):
        return longest_s
    met = zip(network.tiers, network.meeting(group), strict=True)
    return longest_s + max((tier.start_s for tier, ranks in met if ranks > 1), default=0.0)


def dispatch_by_level(
    network: Network, size_bytes: float, group: Group, routing: Routing
) -> tuple[float, ...]:
    """Seconds for which these rows are on the links of each level, the innermost first.

    `size_bytes` are the rows of all experts of a rank's tokens, k of each. A row goes once to every node that
    needs it, to the rank there that is numbered alike, which hands it on. On networks without levels every
    rank sends directly.
    """
    if not isinstance(network, Levels):
        whole = size_bytes / routing.per_token * routing.distinct(group.ranks)
        return network.by_level("all_to_all", whole, group)
    sent = dispatched_bytes(network, size_bytes, group, routing)
    met = zip(network.tiers, network.meeting(group), sent, strict=True)
    return tuple(
        nbytes / tier.all_to_all_bytes_per_s + (ranks - 1) * tier.latency_s for tier, ranks, nbytes in met
    )


def dispatched_bytes(
    network: Network, size_bytes: float, group: Group, routing: Routing
) -> tuple[float, ...]:
    """Bytes of these rows that a rank sends over the links of each level, the innermost first."""
    met = network.meeting(group) if isinstance(network, Levels) else (group.ranks,)
    found, parts = [], 1
    for ranks in reversed(met):
        parts *= ranks
        rows = routing.distinct(min(parts, group.ranks)) / routing.per_token
        found.append(size_bytes * rows * (ranks - 1) / ranks)
    return tuple(reversed(found))
