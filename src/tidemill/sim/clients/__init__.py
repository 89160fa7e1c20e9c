"""The clients of a simulated cluster: they speak the real protocol in processes of their own, and record a history."""
