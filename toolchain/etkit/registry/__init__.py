"""Packages of programs in OCI registries: made, moved, verified, described, and sent as updates."""
