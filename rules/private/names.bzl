"""By which names a program knows its sources and its data. They make up the key, so no name holds a path of a machine."""

def repository_path(file):
    """Returns a file's path in its own repository, whether it is a source or generated.

    Args:
      file: a File.

    Returns:
      A string such as `models/common/net.py`.
    """
    path = file.short_path
    if path.startswith("../"):  # of another repository: ../REPOSITORY/PATH
        return path.split("/", 2)[2]
    return path

def relative_to(file, directory):
    """Returns a file's path below a directory of its repository.

    Args:
      file: a File.
      directory: a path in the repository; empty for its root.

    Returns:
      A string, or None where the file does not lie below the directory.
    """
    path = repository_path(file)
    if not directory:
        return path
    return path[len(directory) + 1:] if path.startswith(directory + "/") else None

def name_beside(file, manifest):
    """Returns a file's name in a program: relative to the manifest's directory, else to the repository.

    Args:
      file: a File.
      manifest: the File of the manifest.

    Returns:
      A string.
    """
    same_repository = file.owner.workspace_name == manifest.owner.workspace_name
    beside = relative_to(file, repository_path(manifest).rpartition("/")[0]) if same_repository else None
    return beside or repository_path(file)

def check_unique(named, attribute):
    """Fails where two files have one name, or one has a name that the driver could not be told.

    Args:
      named: a list of struct(name, file).
      attribute: the attribute that they are from, for the message.
    """
    seen = {}
    for entry in named:
        if "=" in entry.name:
            fail("'{}' has a `=` in its name, which no input can have: rename it".format(entry.name), attr = attribute)
        if entry.name in seen:
            fail("two files have the name '{}': {} and {}. Keep one of them".format(
                entry.name,
                seen[entry.name].path,
                entry.file.path,
            ), attr = attribute)
        seen[entry.name] = entry.file
