"""Answers questions about finished builds: what differs between two builds, and why."""
