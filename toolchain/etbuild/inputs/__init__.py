"""The inputs that a step reads: the model's code, its lines, and checkpoints."""
