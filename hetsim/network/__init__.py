"""How long communication takes: links, collectives, and transfers that share links.

    Fabric          the cluster's directed links over time, and what all-reduces, pushes, pulls and exchanges send over them
    Transfer        a latency, then bytes over links
    SharedLinks     transfers in progress, at max-min fair rates
    max_min_rates   the sharing rule by itself
    bucket_bytes, stream_ready, streamed_finish
                    an all-reduce that leaves bucket by bucket during the backward pass

Pure arithmetic on `hetsim.cluster.spec.Network`: no event loop in here. A new collective is a function in `collectives`.
"""

from hetsim.network.fabric import Fabric
from hetsim.network.fairness import max_min_rates
from hetsim.network.sharing import SharedLinks
from hetsim.network.streaming import bucket_bytes, stream_ready, streamed_finish
from hetsim.network.transfer import LinkId, Transfer

__all__ = [
    "Fabric",
    "LinkId",
    "SharedLinks",
    "Transfer",
    "bucket_bytes",
    "max_min_rates",
    "stream_ready",
    "streamed_finish",
]
