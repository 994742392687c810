"""Seconds, joules, bytes and square millimetres of operators and collectives."""
