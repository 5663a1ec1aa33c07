"""Processes: how a build is started, watched, isolated and ended, and how changes by user code are undone."""
