#!/bin/sh
# apt_install.sh PACKAGE...: installs Debian or Ubuntu packages. It prints nothing to standard output.
set -eu
command -v apt-get >/dev/null || { echo "This system has no apt-get." >&2; exit 1; }
as_root=
if [ "$(id -u)" != 0 ]; then
  as_root=sudo
  if ! command -v sudo >/dev/null; then
    echo "There is no sudo. As root, run: apt-get install --no-install-recommends $*" >&2
    exit 1
  fi
fi
$as_root apt-get update -qq >&2
# The messages of dpkg about each package are dropped. Errors go to standard error.
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq -o Dpkg::Use-Pty=0 --no-install-recommends "$@" >/dev/null
