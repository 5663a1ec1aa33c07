#!/bin/sh
# find_python.sh [VERSION]: prints the path of the newest supported Python that can make virtual environments, or of VERSION
# (such as 3.12), which may be one of pyenv or uv too. If there is none, it installs Debian's or Ubuntu's package.
set -eu
here=$(dirname "$0")
wanted=${1:-}
versions=${wanted:-3.13 3.12 3.11 3.14 3.10}   # nothing is tested with the last two

# usable COMMAND VERSION: prints the path of the interpreter, since a command of pyenv is a script.
usable() {
  "$1" -c 'import ensurepip, sys, venv; assert "%d.%d" % sys.version_info[:2] == sys.argv[1]; print(sys.executable)' "$2" 2>/dev/null
}
find_one() {
  for version in $versions; do
    if usable "python$version" "$version"; then return; fi
  done
  [ -n "$wanted" ] || return 1
  usable "$(pyenv prefix "$wanted" 2>/dev/null)/bin/python" "$wanted" || usable "$(uv python find "$wanted" 2>/dev/null)" "$wanted"
}

if find_one; then exit; fi
package=python${wanted:-3}-venv
echo "There is no Python ($versions) with its venv module. Installing the system's package $package." >&2
"$here/apt_install.sh" "$package" || true
if find_one; then exit; fi
echo "Install Python ${wanted:-3.11, 3.12 or 3.13} with its venv module (on Debian and Ubuntu: $package), and try again." >&2
exit 1
