"""The check of the names of extras."""

load(":package_facts.bzl", "EXTRAS")
load(":spelling.bzl", "nearest")

def check_extras(extras, module = ""):
    """Fails if there is no such extra.

    Args:
      extras: list of string.
      module: string, the module that asks for them, for the message; empty for the user's own.
    """
    for extra in extras:
        if extra not in EXTRAS:
            near = nearest(extra, EXTRAS)
            fail("There is no extra `{}`.{} Known: {}.{}".format(
                extra,
                " Did you mean `{}`?".format(near) if near else "",
                ", ".join(EXTRAS),
                " The module `{}` asks for it.".format(module) if module else "",
            ))
