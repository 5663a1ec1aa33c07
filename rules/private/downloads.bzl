"""Checks of what repository rules download."""

def check_sha256(name, sha256):
    """Fails if a digest does not pin a file: without one, Bazel would take any content.

    Args:
      name: string, the file, for the message.
      sha256: string.
    """
    if len(sha256) != 64 or [char for char in sha256.elems() if char not in "0123456789abcdef"]:
        fail("the sha256 of `{}` has to have 64 hexadecimal digits in lower case, not `{}`".format(name, sha256))
