"""Authentication, authorisation and quotas: the parts of security that decide, without I/O, clock or randomness."""
