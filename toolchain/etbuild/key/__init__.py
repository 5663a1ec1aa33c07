"""The key of a build: what is declared, which files, packages and code it holds."""
