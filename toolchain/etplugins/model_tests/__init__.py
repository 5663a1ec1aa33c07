"""What a manifest says about tests of its program: cases, metrics and texts, which `etbuild test` runs."""
