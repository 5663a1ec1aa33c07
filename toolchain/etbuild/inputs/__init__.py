"""The inputs of a build: sources, data, installed packages, and the key that is made from their digests."""
