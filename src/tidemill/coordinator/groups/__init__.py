"""Classic groups and committed offsets: the machine of one partition of __consumer_offsets."""
