"""Authentication and authorisation of requests: listeners' gates, logins, hosts of nodes, and what each API needs."""
