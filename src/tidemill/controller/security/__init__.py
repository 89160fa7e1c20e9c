"""Decisions about ACLs, SCRAM credentials and client quotas."""
