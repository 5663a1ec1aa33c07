#!/bin/sh
# Prints a command that runs Bazel 7 or later as `COMMAND WORKSPACE ARGUMENT...`. The tests of MODULE.bazel use it. It looks
# in this order:
#   1. the variable BAZEL7
#   2. `bazel7` on the PATH
#   3. bazelisk on the PATH, or a `bazel` that is version 7 or later
#   4. an executable file `bazel7` of this user near the checkout: in the folder that holds the checkout, at most two folders
#      deeper. If there is an executable `setup` beside it, that runs first. It may install something, and may need root.
# If it finds nothing, it prints nothing and its exit code is 1.
set -eu
here=$(cd "$(dirname "$0")" && pwd)

if [ -n "${BAZEL7:-}" ]; then
  echo "$BAZEL7"
  exit
fi
if command -v bazel7; then
  exit
fi
if "$here/modern_bazel.sh" / --version >/dev/null 2>&1; then
  echo "$here/modern_bazel.sh"
  exit
fi
near=$(dirname "$(dirname "$here")")
found=$(find "$near" -maxdepth 3 -type f -name bazel7 -user "$(id -u)" -perm -u=x 2>/dev/null | sort | head -n 1)
setup=$(dirname "${found:-.}")/setup
if [ -n "$found" ] && { [ ! -x "$setup" ] || "$setup" >&2; }; then
  echo "$found"
  exit
fi
echo "Bazel 7 or later is not installed: the tests of MODULE.bazel are skipped. Install bazelisk or set BAZEL7." >&2
exit 1
