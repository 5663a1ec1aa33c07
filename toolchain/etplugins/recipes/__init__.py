"""ExecuTorch's export recipes, by name or from the declared sources."""
