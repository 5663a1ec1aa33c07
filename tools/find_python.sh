#!/bin/sh
# Prints the path of the newest supported Python that can make virtual environments. The variable PYTHON, such as 3.12, asks
# for one version, which may also be one of pyenv or uv. If there is none, it installs Debian's or Ubuntu's python3-venv.
set -eu
here=$(dirname "$0")
VERSIONS=${PYTHON:-3.13 3.12 3.11 3.14 3.10}   # not all packages of the lock are tried with the last two

# The interpreter itself: a command of pyenv is a script.
usable() { "$1" -c 'import ensurepip, sys, venv; print(sys.executable)' 2>/dev/null; }
find_one() {
  for version in $VERSIONS; do
    if usable "python$version"; then return; fi
  done
  [ -n "${PYTHON:-}" ] || return 1
  usable "$(pyenv prefix "$PYTHON" 2>/dev/null)/bin/python" || usable "$(uv python find "$PYTHON" 2>/dev/null)"
}

if find_one; then exit; fi
echo "No Python with venv is there (${VERSIONS}). Installing the system's package python${PYTHON:-3}-venv." >&2
"$here/apt_install.sh" "python${PYTHON:-3}-venv" || true
if find_one; then exit; fi
echo "Install Python 3.11, 3.12 or 3.13 with its venv module (on Debian and Ubuntu: python3-venv), and try again." >&2
exit 1
