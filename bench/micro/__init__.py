"""Costs of single parts, each measured alone in its own process."""
