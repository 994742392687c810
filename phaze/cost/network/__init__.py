"""Networks between devices: topologies, collectives, and messages that contend for links."""
