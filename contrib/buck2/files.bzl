"""Files of a target, with the paths that give them their names. Buck2's own paths of files are not in the key."""

load("//rules/private:common.bzl", "beside", "file_name_error")

# A file of the package, or a target that makes files.
FILE = attrs.one_of(attrs.dep(), attrs.source())

def check(ctx: AnalysisContext, error):
    """Fails if there is an error.

    Args:
      ctx: the context of the rule.
      error: (attribute, what is wrong), or None.
    """
    if error:
        fail("{}: attribute `{}`: {}".format(ctx.label.raw_target(), error[0], error[1]))

def files_of(ctx: AnalysisContext, item) -> list:
    """Returns the files of one item of an attribute.

    Args:
      ctx: the context of the rule.
      item: Artifact of this package, or Dependency.

    Returns:
      list of struct(cell, path, file). `path` is the path in the cell: a target's outputs are in its package.
    """
    label = item.label if isinstance(item, Dependency) else ctx.label
    files = item.get(DefaultInfo).default_outputs if isinstance(item, Dependency) else [item]
    prefix = label.package + "/" if label.package else ""
    return [struct(cell = label.cell, file = file, path = prefix + file.short_path) for file in files]

def named_beside(ctx: AnalysisContext, items: list, manifest) -> list:
    """Gives each file the name that it has beside a manifest.

    Args:
      ctx: the context of the rule.
      items: list of Artifact or Dependency.
      manifest: struct(cell, path, file).

    Returns:
      list of struct(name, file).
    """
    return [
        struct(file = file.file, name = beside(file.path, manifest.path if file.cell == manifest.cell else None))
        for item in items
        for file in files_of(ctx, item)
    ]

def named_as(ctx: AnalysisContext, named: dict, attribute: str) -> list:
    """Gives files the names that an attribute says.

    Args:
      ctx: the context of the rule.
      named: dict of name to Artifact.
      attribute: the attribute, for messages.

    Returns:
      list of struct(name, file).
    """
    for name in named:
        error = file_name_error(name)
        check(ctx, (attribute, error) if error else None)
    return [struct(file = file, name = name) for name, file in named.items()]

def place(file: Artifact) -> str:
    """Returns where a file is, for messages.

    Args:
      file: the file.

    Returns:
      its path in its package, and the target that makes it.
    """
    return "{} of {}".format(file.short_path, file.owner) if file.owner else file.short_path
