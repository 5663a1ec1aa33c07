#!/bin/sh
# find_npm.sh ARGUMENT...: runs npm. If npm is not installed, it installs Debian's package. Only `make lint` needs npm.
set -eu
here=$(dirname "$0")
command -v npm >/dev/null || "$here/apt_install.sh" npm || { echo "Install npm, and try again." >&2; exit 1; }
exec npm "$@"
