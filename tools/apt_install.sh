#!/bin/sh
# apt_install.sh PACKAGE...: installs Debian or Ubuntu packages. All output goes to standard error.
set -eu
command -v apt-get >/dev/null || exit 1
if [ "$(id -u)" = 0 ]; then as_root=; else as_root=sudo; command -v sudo >/dev/null || exit 1; fi
$as_root apt-get update -qq >&2
$as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >&2
