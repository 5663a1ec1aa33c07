#!/bin/sh
# find_browser.sh: prints the path of Chromium. If it is missing, installs Debian's package. The tests open pages in it.
set -eu
here=$(dirname "$0")
command -v chromium >/dev/null || "$here/apt_install.sh" chromium || true
if ! command -v chromium; then
  echo "Install chromium (on Debian: the package chromium), and try again. Without it, tests of the page are skipped." >&2
  exit 1
fi
