"""Export: makes one `torch.export` program for each method, and the files that hold them."""
