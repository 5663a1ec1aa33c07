#!/bin/sh
# find_npm.sh ARGUMENT...: runs npm, which it installs from Debian where there is none. Only linting needs it.
set -eu
here=$(dirname "$0")
command -v npm >/dev/null || "$here/apt_install.sh" npm || { echo "Install npm, and try again." >&2; exit 1; }
exec npm "$@"
