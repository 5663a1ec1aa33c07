"""The page of a program: one HTML file that shows its methods, graphs, bytes, memory and provenance to people."""
