"""HTTP before a cluster: the REST gateway and the web console, in a process of their own."""
