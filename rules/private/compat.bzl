"""The differences between the versions of Bazel up to 9. `bazel4.bzl` has what only Bazel 4 needs.

`watch.bzl` depends on the version too. These functions test for single members, because `native.bazel_version` is empty in Debian's versions of Bazel.
"""

# The words that run the driver, for messages.
ETBUILD = "bazel run @rules_executorch//:etbuild --"

def unblocked(repository_ctx):
    """Returns the arguments of `repository_ctx.download` that start a download without waiting for it.

    Args:
      repository_ctx: the context of the repository rule.

    Returns:
      dict of arguments; empty before Bazel 7.1, which downloads one file after the other.
    """
    return {"block": False} if hasattr(repository_ctx, "watch") else {}

def is_before(repository_ctx, *version):
    """Whether this Bazel is older than a version. Debian's Bazels, 4.2 and 7.7, do not know their version.

    Args:
      repository_ctx: the context of a repository rule.
      *version: a number or two, such as `7, 7`.

    Returns:
      bool.
    """
    known = native.bazel_version.split(".")
    if known[0].isdigit():
        return tuple([int(number) for number in known[:len(version)]]) < version
    return not hasattr(repository_ctx, "watch")

def own_global(repository_ctx, name):
    """Returns an expression for a global of Bazel's own rules of languages; its value is None in a Bazel without them.

    A file that names a global which is not there cannot be loaded. `native.legacy_globals` has those that are there, in
    Bazel 7.7 and later, also with `--incompatible_stop_exporting_language_modules`. Earlier ones always have all of them.

    Args:
      repository_ctx: the context of the repository rule that writes the expression.
      name: string, the name of the global.

    Returns:
      string.
    """
    return name if is_before(repository_ctx, 7, 7) else "getattr(getattr(native, \"legacy_globals\", None), \"{}\", None)".format(name)

def reproducible(module_ctx):
    """Returns the result of a module extension that depends only on its tags: lockfiles then leave it out.

    Args:
      module_ctx: the context of the extension.

    Returns:
      what the extension returns: metadata, or None before Bazel 7.1, which has no such metadata.
    """
    return module_ctx.extension_metadata(reproducible = True) if hasattr(module_ctx, "watch") else None

def label_text(label):
    """Returns a label as users write it. Use it only in messages.

    Args:
      label: Label.

    Returns:
      string: `//pkg:name`, also in later versions of Bazel, where `str` gives `@@//pkg:name`.
    """
    text = str(label)
    return text[2:] if text.startswith("@@//") else text
