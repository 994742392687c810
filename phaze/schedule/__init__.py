"""Operator scheduling: start time and core of each operator of a layer."""
