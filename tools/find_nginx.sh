#!/bin/sh
# Prints the path of an nginx that accepts uploads (WebDAV's PUT). If there is none, it installs Debian's package. The tests
# use nginx as a cache server.
set -eu
here=$(dirname "$0")
PATH=$PATH:/usr/sbin   # Debian installs it there, which is not on the PATH of ordinary users
usable() { command -v nginx >/dev/null && nginx -V 2>&1 | grep -q http_dav_module; }
if ! usable; then
  echo "nginx is not installed. Installing Debian's package nginx-light." >&2
  "$here/apt_install.sh" nginx-light || true
fi
if ! usable; then
  echo "Install nginx with its WebDAV module (on Debian and Ubuntu: nginx-light), and try again." >&2
  exit 1
fi
command -v nginx
