#!/bin/sh
# Prints the command of a Bazel: $BAZEL, bazelisk or bazel of the PATH, else Debian's, which it installs.
set -eu
here=$(dirname "$0")
for command in "${BAZEL:-}" bazelisk bazel; do
  if [ -n "$command" ] && command -v "$command" >/dev/null; then
    command -v "$command"
    exit
  fi
done
echo "No Bazel here: installing Debian's package bazel-bootstrap." >&2
if "$here/apt_install.sh" bazel-bootstrap && command -v bazel; then
  exit
fi
echo "Install Bazel 4.2 or later, for example with bazelisk (https://github.com/bazelbuild/bazelisk), and try again." >&2
exit 1
