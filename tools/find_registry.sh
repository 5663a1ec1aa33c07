#!/bin/sh
# find_registry.sh COMMAND: prints the path of docker-registry or skopeo. If it is missing, installs Debian's package of that
# name. The tests use them as a registry, and as a client of other authors.
set -eu
here=$(dirname "$0")
command -v "$1" >/dev/null || "$here/apt_install.sh" "$1" || true
if ! command -v "$1"; then
  echo "Install $1 (on Debian and Ubuntu: the package $1), and try again. Without it, tests of registries are skipped." >&2
  exit 1
fi
