"""The plan: a checked manifest as canonical JSON."""
