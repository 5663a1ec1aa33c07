#!/bin/sh
# Prints the path of an nginx that takes uploads (WebDAV's PUT). If there is none, installs Debian's. The tests use it as a
# cache server.
set -eu
here=$(dirname "$0")
PATH=$PATH:/usr/sbin   # Debian installs it there; users do not have this directory on the PATH
usable() { command -v nginx >/dev/null && nginx -V 2>&1 | grep -q http_dav_module; }
if ! usable; then
  echo "No nginx here: installing Debian's package nginx-light." >&2
  "$here/apt_install.sh" nginx-light || true
fi
if ! usable; then
  echo "Install nginx with its WebDAV module (on Debian and Ubuntu: nginx-light), and try again." >&2
  exit 1
fi
command -v nginx
