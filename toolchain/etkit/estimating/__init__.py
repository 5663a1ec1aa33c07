"""Says before a build what it takes: its memory, the size of its files, and the memory of the program."""
