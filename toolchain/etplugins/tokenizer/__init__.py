"""The tokenizer: files that travel with a program."""
