"""TLS for brokers and clients: settings as plain values, and the contexts that are made of them."""
