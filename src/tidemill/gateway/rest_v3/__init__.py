"""Confluent's REST API v3."""
