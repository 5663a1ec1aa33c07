"""Methods that somebody exported elsewhere: `.pt2` files of `torch.export.save`, read without running their code."""
