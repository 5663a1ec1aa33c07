"""Processes: how a build is started, watched, isolated and ended, and what user code changes in one."""
