"""Our own small API: a topic is a path."""
