"""Mapping of pipeline stages to the devices of any network (Parmesan, Section V)."""
