"""The HTTP API of the console: pictures of the cluster, messages, live tails."""
