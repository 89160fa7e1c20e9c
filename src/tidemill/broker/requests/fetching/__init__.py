"""Fetches of consumers and followers: delayed fetches, and fetches of views."""
