"""The names in a registry that a push needs, checked before anything is built. `etbuild push` checks them again."""

load(":facts.bzl", "CHARACTERS")

_LOWER = "abcdefghijklmnopqrstuvwxyz0123456789"

# The forms of the OCI distribution specification.
_LONGEST_TAG = 128
_LONGEST_REPOSITORY = 255

def _has_only(text, characters):
    return not [at for at in range(len(text)) if text[at] not in characters]

def _is_path(text):
    """Whether a text can be the path of a repository: parts of letters and digits, with separators between them."""
    return _has_only(text, _LOWER + "._-/") and text[:1] in _LOWER and text[-1:] in _LOWER and 0 < len(text) and \
           len(text) <= _LONGEST_REPOSITORY

def repository_error(text):
    """Says whether a text cannot name a repository with its registry.

    Args:
      text: string.

    Returns:
      string, or None.
    """
    registry, _, path = text.partition("/")
    if not registry or not path or registry[-1] == ":" or not _has_only(registry, CHARACTERS + ".:[]"):
        return "'{}' is not a repository of a registry: {}".format(text, _EXAMPLE)
    if ":" in path or "@" in path:
        return "'{}' names one package: leave out what follows the repository. `remote_tags` has its tags".format(text)
    return path_error(path)

_EXAMPLE = "write REGISTRY/REPOSITORY, such as `registry.example.com/models/net`"

def path_error(path):
    """Says whether a text cannot be the path of a repository in its registry.

    Args:
      path: string.

    Returns:
      string, or None.
    """
    if _is_path(path):
        return None
    return "'{}' is not the path of a repository: it has lower-case letters and digits, and between them `/`, `.`, `_` and `-`".format(path)

def tag_error(text):
    """Says whether a text cannot be a tag, whatever its stamp values are.

    Args:
      text: string, in which `{KEY}` stands for the stamp value KEY.

    Returns:
      string, or None.
    """
    fixed, rest = "", text
    for _ in range(text.count("{")):
        before, _, rest = rest.partition("{")
        key, end, after = rest.partition("}")
        if not end or not key or "{" in key:
            return "'{}' is not a tag: `{{KEY}}` stands for a stamp value, such as `{{STABLE_GIT_COMMIT}}`".format(text)
        fixed, rest = fixed + before + "x", after
    fixed += rest
    if fixed and len(fixed) <= _LONGEST_TAG and _has_only(fixed, CHARACTERS + ".") and fixed[0] not in ".-":
        return None
    return "'{}' is not a tag: a tag has up to 128 letters, digits, `_`, `.` and `-`, and begins with none of `.-`".format(text)
