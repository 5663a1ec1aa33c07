#!/bin/sh
# fetch.sh REGISTRY/REPOSITORY@sha256:DIGEST
#
# Fetches the program and its named data into the resources of the package. Run it before each build: it fetches only
# what is not there yet, and compares every file with its digest. A plugin of the Swift package cannot do this, because
# plugins run in a sandbox without network.
set -eu
if ! echo "${1:-}" | grep -qE '@sha256:[0-9a-f]{64}$'; then
  echo "fetch.sh: name the package by its digest, as \`etbuild push\` prints it" >&2
  exit 2
fi
programs=$(dirname "$0")/Sources/Classifier/Programs
# Files of another package would become resources of the app too.
if [ "$(cat "$programs/.package" 2>/dev/null)" != "$1" ]; then
  rm -rf "$programs"
  mkdir -p "$programs"
  echo "$1" > "$programs/.package"
fi
etbuild pull "$1" --program classifier --out "$programs"
etbuild verify "$programs"
