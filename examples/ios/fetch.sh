#!/bin/sh
# fetch.sh REGISTRY/REPOSITORY@sha256:DIGEST
#
# Fetches the program and its named data into the resources of the package. Run it before each build: it fetches only
# what is not there yet, and compares every file with its digest. A plugin of the Swift package cannot do this, because
# plugins run in a sandbox without network.
set -eu
case ${1:-} in
*@sha256:*) ;;
*) echo "fetch.sh: name the package by its digest, as \`etbuild push\` prints it" >&2; exit 2 ;;
esac
programs=$(dirname "$0")/Sources/Classifier/Programs
etbuild pull "$1" --program classifier --out "$programs"
etbuild verify "$programs"
