"""A connection to a broker: frames over TCP or TLS, and the login with SASL."""
