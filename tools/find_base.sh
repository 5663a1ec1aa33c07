#!/bin/bash
# Prints the commit that a change began at: where its branch left `main`; on `main` itself, the newest commit that is a day
# older than the last one, so that all that landed together is tested, by merges or not. Prints nothing in a clone without
# this history. The same commit has the same base on each day.
set -euo pipefail
for main in origin/main main; do
  if base=$(git merge-base HEAD "$main" 2> /dev/null); then
    [ "$base" = "$(git rev-parse HEAD)" ] || { echo "$base"; exit; }
    break
  fi
done
git rev-parse --verify --quiet HEAD^1 > /dev/null || exit 0
day_before=$(($(git log -1 --format=%ct) - 86400))
base=$(git rev-list -1 --first-parent --before="$day_before" HEAD)
echo "${base:-$(git rev-list --first-parent HEAD | tail -1)}"
