"""Share partitions at the leaders of their partitions, and the sessions of the members that fetch from them."""
