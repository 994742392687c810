"""The network level of the simulator: topologies, contention, collectives, mappings (PALM, IV.C, V)."""

from phaze.simulate.network.contention import Network
from phaze.simulate.network.delivery import Delivery, deliver
from phaze.simulate.network.machine import NetworkMachine
from phaze.simulate.network.mesh import Grid, Memory, Wires, mesh
from phaze.simulate.network.messages import Message, Plan, then, together
from phaze.simulate.network.topology import Link, Topology

__all__ = [
    "Delivery",
    "Grid",
    "Link",
    "Memory",
    "Message",
    "Network",
    "NetworkMachine",
    "Plan",
    "Topology",
    "Wires",
    "deliver",
    "mesh",
    "then",
    "together",
]
