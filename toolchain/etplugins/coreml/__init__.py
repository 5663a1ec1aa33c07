"""Core ML: Apple's CPU, GPU and Neural Engine."""
