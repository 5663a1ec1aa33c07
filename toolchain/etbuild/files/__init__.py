"""Files and directories: opened without following links, read up to a limit, written whole."""
