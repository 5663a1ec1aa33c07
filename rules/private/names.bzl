"""The names of sources and data in a program. They are part of the key, so they never hold a path of one machine."""

# These characters separate names in arguments of the driver, or are not allowed in file names.
_NOT_IN_NAMES = [",", "/", "=", " ", "\t", "\n"]

def check_names(names, attribute):
    """Fails if a name of a method, a backend or a tag is empty, has a character that it must not have, or stands twice.

    Args:
      names: list of string.
      attribute: string, the attribute that holds them, for the message.
    """
    seen = {}
    for name in names:
        if name in seen:
            fail("'{}' is listed twice".format(name), attr = attribute)
        if not name or [char for char in _NOT_IN_NAMES if char in name]:
            fail(
                "'{}' is not a name: it must have characters, but no comma, slash, `=` or white space".format(name),
                attr = attribute,
            )
        seen[name] = True

def repository_path(file):
    """Returns the path of a source or a generated file in its own repository.

    Args:
      file: File.

    Returns:
      string, such as `models/common/net.py`.
    """
    path = file.short_path
    if path.startswith("../"):  # a file of another repository: ../REPOSITORY/PATH
        return path.split("/", 2)[2]
    return path

def _place(file):
    """Returns where a file is, for messages: its path in its repository, and the repository if it is another one."""
    repository = file.owner.workspace_name
    return repository_path(file) + (" of @{}".format(repository) if repository else "")

def relative_to(file, directory):
    """Returns the path of a file relative to a directory of its repository.

    Args:
      file: File.
      directory: string, a path in the repository; empty for its root.

    Returns:
      string, or None if the file is not below the directory.
    """
    path = repository_path(file)
    if not directory:
        return path
    return path[len(directory) + 1:] if path.startswith(directory + "/") else None

def name_beside(file, manifest):
    """Returns the name of a file in a program.

    Args:
      file: File.
      manifest: File, the manifest.

    Returns:
      string, the path relative to the manifest's directory. If the file is not below that directory, the path in its
      repository.
    """
    same_repository = file.owner.workspace_name == manifest.owner.workspace_name
    beside = relative_to(file, repository_path(manifest).rpartition("/")[0]) if same_repository else None
    return beside or repository_path(file)

# `NAME.export` and `NAME.pte` are other outputs. The driver has the same list, and a test compares the two.
_NOT_TAGS = ["export", "pte"]

def check_tags(tags, attribute):
    """Fails if a tag is no name, stands twice, or would have the name of another output.

    Args:
      tags: list of string.
      attribute: string, the attribute that holds them, for the message.
    """
    check_names(tags, attribute)
    for tag in tags:
        if tag in _NOT_TAGS:
            fail("'{}' cannot be a tag: NAME.{} is another output. Choose another name".format(tag, tag), attr = attribute)

def named_beside(files, manifest):
    """Gives each file the name that it has beside a manifest.

    Args:
      files: list of File.
      manifest: File, the manifest.

    Returns:
      list of struct(name, file).
    """
    return [struct(name = name_beside(file, manifest), file = file) for file in files]

def named_as(targets, attribute):
    """Gives the files of each target the name that an attribute says.

    Args:
      targets: dict of Target to string: the name of its file. If it has several files, the name of the folder that they
        have in common.
      attribute: string, the attribute, for messages.

    Returns:
      list of struct(name, file).
    """
    named = []
    for target, name in targets.items():
        files = target[DefaultInfo].files.to_list()
        if not name or [part for part in name.split("/") if part in ("", ".", "..")] or "\n" in name:
            fail("'{}' is not a name of a file: write a relative path without `..`".format(name), attr = attribute)
        if not files:
            fail("{} has no files".format(target.label), attr = attribute)
        folder = _common_folder(files)
        for file in files:
            named.append(struct(name = name if len(files) == 1 else name + "/" + relative_to(file, folder), file = file))
    return named

def _common_folder(files):
    """Returns the folder in the repository that holds all of these files, and the deepest one if several do."""
    folders = [repository_path(file).split("/")[:-1] for file in files]
    common = []
    for position, part in enumerate(folders[0]):
        if [folder for folder in folders if folder[position:position + 1] != [part]]:
            break
        common.append(part)
    return "/".join(common)

def check_unique(named, attribute, advice = "Keep one of them"):
    """Fails if two files have the same name, or if a name has a `=`, which ends a name in the driver's arguments.

    Args:
      named: list of struct(name, file).
      attribute: string, the attribute that holds the files, for the message.
      advice: string, what to do about two files with the same name.
    """
    seen = {}
    for entry in named:
        if "=" in entry.name:
            fail("'{}' has a `=` in its name, which is not allowed: rename the file".format(entry.name), attr = attribute)
        if entry.name in seen:
            fail("two files have the name '{}': {} and {}. {}".format(
                entry.name,
                _place(seen[entry.name]),
                _place(entry.file),
                advice,
            ), attr = attribute)
        seen[entry.name] = entry.file

def check_import_paths(sources):
    """Fails if two files have the same import path: Python would import one of them, and which one would be chance.

    Args:
      sources: list of struct(name, file), in which one file can stand twice.
    """
    once = {(entry.name, entry.file): entry for entry in sources}.values()
    advice = "Keep one of the libraries in `deps`, or give one another import root (`import_root`, or `imports`)"

    # `imports` of a py_library can name a package itself. Nothing imports a module by the name `__init__`.
    check_unique([entry for entry in once if entry.name != "__init__.py"], "deps", advice)
