#!/bin/sh
# modern_bazel.sh WORKSPACE ARGUMENT...: runs the PATH's bazelisk, or its bazel if that is version 7 or later, in WORKSPACE.
# It leaves no server running, and writes below $BAZEL7_OUTPUT_ROOT if that is set.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
cd "$1"
shift
if command -v bazelisk >/dev/null; then
  export USE_BAZEL_VERSION="${USE_BAZEL_VERSION:-$(sed -n "s/^USE_BAZEL_VERSION=//p" "$here/../.bazeliskrc")}"
  bazel=bazelisk
else
  bazel=bazel
fi
version=$($bazel --version)   # such as `bazel 7.7.1`
major=$(expr "$version" : 'bazel \([0-9]*\)\.') || major=0
if [ "$major" -lt 7 ]; then
  echo "modern_bazel.sh: '$version' is not Bazel 7 or later" >&2
  exit 1
fi
if [ "$*" = --version ]; then
  echo "$version"
  exit
fi
exec $bazel --batch ${BAZEL7_OUTPUT_ROOT:+--output_user_root="$BAZEL7_OUTPUT_ROOT"} "$@"
