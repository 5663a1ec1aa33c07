"""The interpreters that can build the packages and run the driver."""

load(":package_facts.bzl", "VERSIONS")

# The file with the interpreters on the PATH, in @rules_executorch_host.
PYTHONS_JSON = "pythons.json"

# Prints the version, and the path behind all links. Fails without the modules that make a virtual environment: Debian has
# them in a package of their own, such as python3.11-venv.
_ABOUT = """\
import os, sys
try:
    import ensurepip, venv
except ImportError:
    sys.exit("it has no module `venv` (on Debian: python%d.%d-venv)" % sys.version_info[:2])
print("%d.%d" % sys.version_info[:2], os.path.realpath(sys.executable))
"""

def check_version(version):
    """Fails if a version of Python is not supported.

    Args:
      version: string, such as `3.12`, or empty.
    """
    if version and version not in VERSIONS:
        fail("`python_version` is `{}`. Supported: {}.".format(version, ", ".join(VERSIONS)))

def about(repository_ctx, python):
    """Runs an interpreter.

    Args:
      repository_ctx: the context of a repository rule.
      python: path or string.

    Returns:
      struct of `version` (string; empty if it cannot build the packages), `executable` (string, the path behind all links) and
      `problem` (string).
    """
    done = repository_ctx.execute([python, "-c", _ABOUT])
    if done.return_code:
        return struct(version = "", executable = "", problem = done.stderr.strip())
    version, _, executable = done.stdout.strip().partition(" ")
    problem = "" if version in VERSIONS else "it is Python " + version
    return struct(version = "" if problem else version, executable = executable, problem = problem)

def pythons_on_path(repository_ctx):
    """Looks for the supported versions.

    Args:
      repository_ctx: the context of a repository rule.

    Returns:
      string: JSON of `found`, a dict of version to path, and of `problems`, a list of the problems of others.
    """
    found, problems = {}, []
    for version in VERSIONS:
        python = repository_ctx.which("python" + version)
        if python:
            told = about(repository_ctx, python)
            if told.version == version:
                found[version] = str(python)
            else:
                problems.append("{}: {}".format(python, told.problem))
    return json.encode({"found": found, "problems": problems})
