#!/bin/sh
# Prints the path of bubblewrap's bwrap. If it is missing, installs Debian's package. The tests' remote executor runs actions
# in it.
set -eu
here=$(dirname "$0")
command -v bwrap >/dev/null || "$here/apt_install.sh" bubblewrap || true
if ! command -v bwrap; then
  echo "Install bubblewrap (on Debian and Ubuntu: the package bubblewrap), and try again. Without it, tests of remote" \
    "execution are skipped." >&2
  exit 1
fi
