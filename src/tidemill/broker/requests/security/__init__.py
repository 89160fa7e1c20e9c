"""Authentication and authorisation of requests: listeners' gates, logins, proofs of nodes, and what each API needs."""
