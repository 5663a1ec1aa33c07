#!/bin/bash
# Prints the commit that a change began at: where its branch left `main`, or the first parent of the newest commit if that
# is on `main` already, which is what the last merge found there. So a merge runs the tests of what it brings, and the time
# does not grow with what others have merged. Prints nothing in a clone without this history.
set -euo pipefail
for main in origin/main main; do
  if base=$(git merge-base HEAD "$main" 2> /dev/null); then
    [ "$base" = "$(git rev-parse HEAD)" ] || { echo "$base"; exit; }
    break
  fi
done
git rev-parse --verify --quiet HEAD^1 || true
