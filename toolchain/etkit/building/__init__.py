"""Builds for people: of several manifests and checkpoints, on changes, compared with earlier ones."""
