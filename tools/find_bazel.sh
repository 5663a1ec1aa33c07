#!/bin/sh
# find_bazel.sh [--workspace]: prints a command that runs Bazel, in one or more words. It looks for $BAZEL, then for bazelisk
# and bazel on the PATH. If there is none, it installs Debian's package. bazelisk runs the version in .bazeliskrc, or
# that in $USE_BAZEL_VERSION. With --workspace, it runs one that supports WORKSPACE files, for tests.
set -eu
here=$(dirname "$0")
if [ -n "${BAZEL:-}" ]; then
  echo "$BAZEL"
  exit
fi
if command -v bazelisk >/dev/null; then
  current=$(sed -n 's/^USE_BAZEL_VERSION=//p' "$here/../.bazeliskrc")
  [ "${1:-}" != --workspace ] || current=4.2.3
  echo "env USE_BAZEL_VERSION=${USE_BAZEL_VERSION:-$current} bazelisk"
  exit
fi
if command -v bazel; then
  exit
fi
echo "Bazel is not installed. Installing Debian's package bazel-bootstrap." >&2
if "$here/apt_install.sh" bazel-bootstrap && command -v bazel; then
  exit
fi
echo "Install Bazel 7 or later, for example with bazelisk (https://github.com/bazelbuild/bazelisk), and try again." >&2
exit 1
