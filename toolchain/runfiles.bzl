"""Paths of runfiles, Bazel's library that finds them, and quotes for scripts that hold such paths."""

# The target of Bazel's runfiles library for bash. A script's runfiles have to contain it.
RUNFILES_LIBRARY = "@bazel_tools//tools/bash/runfiles"

# The first lines of a bash script that uses the library, from its documentation. They define `rlocation`.
RUNFILES_INIT = """\
set -uo pipefail; set +e; f=bazel_tools/tools/bash/runfiles/runfiles.bash
source "${RUNFILES_DIR:-/dev/null}/$f" 2>/dev/null || \\
  source "$(grep -sm1 "^$f " "${RUNFILES_MANIFEST_FILE:-/dev/null}" | cut -f2- -d' ')" 2>/dev/null || \\
  source "$0.runfiles/$f" 2>/dev/null || \\
  source "$(grep -sm1 "^$f " "$0.runfiles_manifest" | cut -f2- -d' ')" 2>/dev/null || \\
  { echo >&2 "no runfiles beside $0, and RUNFILES_DIR does not name them"; exit 1; }; f=; set -e"""

def runfiles_path(ctx, file):
    """Returns the path of a file relative to the directory of runfiles.

    Args:
      ctx: the context of the rule.
      file: File, one of the runfiles.

    Returns:
      string, which starts with the name of a repository.
    """
    path = file.short_path
    return path[len("../"):] if path.startswith("../") else ctx.workspace_name + "/" + path

def quoted(text):
    """Returns a text as one word of a shell.

    Args:
      text: string.

    Returns:
      string, with quotes around it.
    """
    return "'{}'".format(text.replace("'", "'\\''"))
