"""NCCL constants inside an NVLink domain, fitted to measured collectives (`cost.network.nccl`)."""

from phaze.spec.noun import Noun
from phaze.spec.values import Positive, Size


class NcclSpeeds(Noun):
    """Constants of NCCL's protocols and algorithms inside an NVLink domain.

    Link bandwidths are shares of a device's bandwidth per direction, so that one generation of links has one
    set of constants; copies inside a device are in bytes per second. Protocols and algorithms are NCCL's
    (src/graph/tuning.cc): LL and LL128 carry flags in the data, Simple synchronises chunks.
    """

    start_s: Size
    """Start-up time in seconds of every collective and message, before its first step."""
    step_s: Size
    """Latency in seconds of a ring step with LL and LL128."""
    ll: Positive
    """Share of the bandwidth that rings with LL reach."""
    ll128_start_s: Size
    """Additional start-up time of LL128 in seconds."""
    ll128: Positive
    """Share of the bandwidth that rings with LL128 reach."""
    simple_start_s: Size
    """Additional start-up time of Simple in seconds."""
    simple_step_s: Size
    """Latency in seconds of a ring step with Simple."""
    simple: Positive
    """Share of the bandwidth that rings with Simple reach, used for large collectives."""
    own_bytes_per_s: Positive
    """Bandwidth in bytes per second at which rings with Simple copy a rank's own part of the tensor."""
    nvls_start_s: Size = 0.0
    """Additional start-up time in seconds of NVLS, which reduces and multicasts in the switches."""
    nvls: Size = 0.0
    """Share of the bandwidth that an all-reduce with NVLS reaches; 0: not supported by the switches (before
    Hopper)."""
    peer_s: Size
    """Latency in seconds of a message, and per peer of an all-to-all."""
    peer: Positive
    """Share of the bandwidth that a small message to one peer reaches (LL, one channel)."""
    direct_start_s: Size
    """Additional start-up time of large messages in seconds."""
    direct: Positive
    """Share of the bandwidth that a rank's large messages to all peers reach together."""
    direct_own_bytes_per_s: Positive
    """Bandwidth in bytes per second at which an all-to-all copies a rank's own part."""
