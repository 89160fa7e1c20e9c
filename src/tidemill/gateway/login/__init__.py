"""Callers log in with the cluster's own users: SASL pass-through, sessions, and the slow-down of guesses."""
