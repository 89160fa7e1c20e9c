"""What the console shows: pictures of the cluster, messages, live tails."""
