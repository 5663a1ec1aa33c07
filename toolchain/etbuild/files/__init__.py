"""Files and directories: opened without following links, read up to a limit, and written completely or not at all."""
