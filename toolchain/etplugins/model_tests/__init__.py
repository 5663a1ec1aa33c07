"""The tests of a program in its manifest: cases, metrics and texts, which `etbuild test` runs."""
