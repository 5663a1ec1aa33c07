#!/bin/sh
# Prints the path of a Python 3.11 that can make virtual environments. If there is none, it installs Debian's package.
set -eu
here=$(dirname "$0")
usable() { python3.11 -c 'import ensurepip, venv' 2>/dev/null; }
if ! usable; then
  echo "Python 3.11 with venv is not installed. Installing Debian's package python3.11-venv." >&2
  "$here/apt_install.sh" python3.11-venv || true
fi
if ! usable; then
  echo "Install Python 3.11 with its venv module (the lock and ExecuTorch's wheels are tested with 3.11), and try again." >&2
  exit 1
fi
command -v python3.11
