"""Runs programs: calls, text and chats, tests, benchmarks, and bundles for devices."""
