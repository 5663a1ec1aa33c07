"""The inputs of a build: sources, data, installed packages, and the key made of their digests."""
