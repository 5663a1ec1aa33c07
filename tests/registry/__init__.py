"""Packages in real registries, on this machine's loopback interface only."""
