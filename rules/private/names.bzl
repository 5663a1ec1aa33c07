"""The names of sources and data in a program. They are part of the key, so they never hold a path of one machine."""

load(":common.bzl", "below", "beside", "file_name_error", "unique_error")

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

def place(file):
    """Returns where a file is, for messages.

    Args:
      file: File.

    Returns:
      string, its path in its repository, and the repository if it is another one.
    """
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
    return below(repository_path(file), directory)

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
    return beside(repository_path(file), repository_path(manifest) if same_repository else None)

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
    """Gives the files of each target the names from an attribute.

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
        error = file_name_error(name)
        if error:
            fail(error, attr = attribute)
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
    error = unique_error(named, place, advice)
    if error:
        fail(error, attr = attribute)
