"""Constants of NCCL inside an NVLink domain, fitted to measured collectives (`cost.network.nccl`)."""

from phaze.spec.noun import Noun
from phaze.spec.values import Positive, Size


class NcclSpeeds(Noun):
    """Constants of NCCL's protocols and algorithms inside an NVLink domain.

    Bandwidths of links are shares of the bandwidth of a device in one direction, so that one generation of
    links has one set of constants; copies inside a device are in bytes per second. Protocols and algorithms
    are those of NCCL (src/graph/tuning.cc): LL and LL128 carry flags in the data, Simple synchronises chunks.
    """

    start_s: Size
    """Time of every collective and message before its first step."""
    step_s: Size
    """Latency of a ring step with LL and LL128."""
    ll: Positive
    """Share of the bandwidth that rings reach with LL."""
    ll128_start_s: Size
    """Additional start of LL128."""
    ll128: Positive
    """Share of the bandwidth that rings reach with LL128."""
    simple_start_s: Size
    """Additional start of Simple."""
    simple_step_s: Size
    """Latency of a ring step with Simple."""
    simple: Positive
    """Share of the bandwidth that rings reach with Simple: large collectives."""
    own_bytes_per_s: Positive
    """Bandwidth of copying a rank's own part of the tensor, which rings with Simple do as well."""
    nvls_start_s: Size = 0.0
    """Additional start of NVLS, in which the switches add up and multicast."""
    nvls: Size = 0.0
    """Share of the bandwidth that an all-reduce with NVLS reaches; 0: the switches cannot (before Hopper)."""
    peer_s: Size
    """Latency of each peer of an all-to-all, and of a message."""
    peer: Positive
    """Share of the bandwidth that a small message to one peer reaches (LL, one channel)."""
    direct_start_s: Size
    """Additional start of large messages."""
    direct: Positive
    """Share of the bandwidth that a rank's large messages to its peers reach together."""
    direct_own_bytes_per_s: Positive
    """Bandwidth of copying a rank's own part in an all-to-all."""
