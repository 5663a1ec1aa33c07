"""The surroundings of a step in its process: arithmetic, environment, random seeds, output, memory."""
