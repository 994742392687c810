"""Pipeline splits of one layout: their costs, linear bounds, and the search for the fastest one."""
