"""From a request frame to its answer: the dispatch table, what handlers share, and a module for each family of APIs."""
