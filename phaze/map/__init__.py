"""Stages of a partition on the devices of any network (Parmesan, Section V)."""
