"""What a step can notice of its process: arithmetic, environment, random seeds, output, memory."""
