"""Predicted training runs beside measured ones."""
