"""The HTTP side of the gateway: connections, guards, bodies, routing, and the OpenAPI document."""
