#!/bin/sh
# Prints the path of an nginx that takes uploads (WebDAV's PUT), else installs Debian's. The tests serve a cache with it.
set -eu
here=$(dirname "$0")
PATH=$PATH:/usr/sbin   # where Debian has it, and users do not look
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
