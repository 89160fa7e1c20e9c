"""Confluent's REST API v2, with consumer instances."""
