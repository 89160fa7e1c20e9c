"""Clients of a simulated cluster: they speak the real protocol from processes of their own, and write down what they saw."""
