"""Token dispatch that sends a token once to every rank or node that needs it (DeepEP, HybridEP).

A token has k of E experts, which are sharded equally across the ranks of a group; ranks of a node are
consecutive. With group-limited routing (DeepSeek-V3, arXiv 2412.19437, Section 2.1.2) experts form G groups.
A token is assigned K of these groups, and its k experts are in them. All choices are equally likely, as with
balanced expert loads.
"""

from dataclasses import dataclass
from math import comb

from phaze.base.errors import PhazeError
from phaze.cost.network.network import Levels, Network
from phaze.layout import Group


@dataclass(frozen=True)
class Routing:
    """Parameters of expert routing: number of experts, experts per token, and limits on groups."""

    experts: int
    """Number of experts E."""
    per_token: int
    """Experts per token, k."""
    groups: int = 1
    """Number of equal groups of experts, G."""
    top_groups: int = 1
    """Number of groups from which a token's experts are chosen, K."""

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
        """Number of experts in the groups from which a token's experts are chosen."""
        return self.experts // self.groups * self.top_groups

    def distinct(self, parts: int) -> float:
        """Expected number of shards to which a token is sent if the experts form `parts` equal shards.

        Without groups parts · (1 − C(E − E/parts, k) / C(E, k)).
        """
        shard = max(self.experts // parts, 1)
        group = self.experts // self.groups
        inside, touched = min(shard, group), max(shard // group, 1)  # within one group, or whole groups
        choices = comb(self.groups, self.top_groups)
        # Hypergeometric: `hit` of the shard's groups are among the K chosen, and none of the k experts is in
        # them.
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
    """Time of token dispatch or combine, where a token is sent to each rank at most once.

    A rank forwards tokens inside its node while others arrive, so the slowest level counts (DeepEP, internode
    kernels).
    """
    longest_s = max(dispatch_by_level(network, size_bytes, group, routing))
    if not isinstance(network, Levels):
        return longest_s
    met = zip(network.tiers, network.meeting(group), strict=True)
    # Levels work at the same time, so that only the longest start counts.
    return longest_s + max((tier.start_s for tier, ranks in met if ranks > 1), default=0.0)


def dispatch_by_level(
    network: Network, size_bytes: float, group: Group, routing: Routing
) -> tuple[float, ...]:
    """Time of token dispatch on the links of each level, in seconds, innermost level first.

    `size_bytes` are the tokens of one rank, each counted k times. A token is sent once to every node that
    needs it, to the rank with the same index there, which forwards it. On networks without levels every rank
    sends directly.
    """
    if not isinstance(network, Levels):
        sent_bytes = size_bytes / routing.per_token * routing.distinct(group.ranks)
        return network.by_level("all_to_all", sent_bytes, group)
    sent = dispatched_bytes(network, size_bytes, group, routing)
    met = zip(network.tiers, network.meeting(group), sent, strict=True)
    return tuple(
        nbytes / tier.all_to_all_bytes_per_s + (ranks - 1) * tier.latency_s for tier, ranks, nbytes in met
    )


def dispatched_bytes(
    network: Network, size_bytes: float, group: Group, routing: Routing
) -> tuple[float, ...]:
    """Bytes that a rank sends over the links of each level in token dispatch, innermost level first."""
    met = network.meeting(group) if isinstance(network, Levels) else (group.ranks,)
    nbytes, parts = [], 1
    for ranks in reversed(met):
        # From the outermost level inwards, each level divides the experts further.
        parts *= ranks
        rows = routing.distinct(min(parts, group.ranks)) / routing.per_token
        nbytes.append(size_bytes * rows * (ranks - 1) / ranks)
    return tuple(reversed(nbytes))
