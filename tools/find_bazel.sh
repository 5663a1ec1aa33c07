#!/bin/sh
# Prints the command of a Bazel, in one or more words: $BAZEL, bazelisk or bazel of the PATH, else Debian's, which it
# installs. bazelisk is asked for the version that the tests of WORKSPACE are written for.
set -eu
here=$(dirname "$0")
if [ -n "${BAZEL:-}" ]; then
  echo "$BAZEL"
  exit
fi
if command -v bazelisk >/dev/null; then
  echo "env USE_BAZEL_VERSION=${USE_BAZEL_VERSION:-4.2.3} bazelisk"
  exit
fi
if command -v bazel; then
  exit
fi
echo "No Bazel here: installing Debian's package bazel-bootstrap." >&2
if "$here/apt_install.sh" bazel-bootstrap && command -v bazel; then
  exit
fi
echo "Install Bazel 4.2 or later, for example with bazelisk (https://github.com/bazelbuild/bazelisk), and try again." >&2
exit 1
