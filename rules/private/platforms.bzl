"""The kinds of machines that packages can be for, those of the locks, with the names that rules_python gives them."""

load(":package_facts.bzl", "PLATFORMS")

# The names of operating systems and processors, as Java and `uname` give them.
_OS = {"linux": "linux", "mac os x": "osx"}
_CPU = {"aarch64": "aarch64", "amd64": "x86_64", "arm64": "aarch64", "x86_64": "x86_64"}

def check_platform(platform):
    """Fails if packages cannot be for a platform.

    Args:
      platform: string.
    """
    if platform and platform not in PLATFORMS:
        fail("There is no platform `{}`. Known: {}.".format(platform, ", ".join(sorted(PLATFORMS))))

def host_platform(repository_ctx):
    """Returns the name of this machine's platform.

    Args:
      repository_ctx: the context of a repository rule.

    Returns:
      string; it need not be in `PLATFORMS`.
    """
    system = repository_ctx.os.name.lower()
    machine = getattr(repository_ctx.os, "arch", None) or repository_ctx.execute(["uname", "-m"]).stdout.strip()
    return "{}_{}".format(_OS.get(system, system), _CPU.get(machine, machine))
