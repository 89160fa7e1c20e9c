"""Fetches of consumers and followers: sessions, delayed fetches, and fetches of views."""
