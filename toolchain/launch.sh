#!/usr/bin/env bash
# Runs the driver, a Python package in the runfiles, with the packages of the PEX file. Its environment is the same on every
# machine. The repository that builds the PEX file also holds its packages unpacked. A local action uses those. On a remote
# executor they are not there, so the PEX file unpacks itself once, below PEX_ROOT.
# The runfiles of this script come before those of a program that starts it.
if [ -d "$0.runfiles" ] || [ -f "$0.runfiles_manifest" ]; then
  unset RUNFILES_DIR RUNFILES_MANIFEST_FILE
fi
%{runfiles}
set -eu
main=$(rlocation "%{main}")
packages=$(rlocation "%{packages}")

real=$(readlink -f -- "$packages")
python=${real%/*}/venv/bin/python
if [ -x "$python" ]; then
  export PYTHONDONTWRITEBYTECODE=1
else
  if [ -z "${PEX_ROOT:-}" ]; then
    # Files in this directory are executed, so it must belong to this user.
    PEX_ROOT=/tmp/rules_executorch-pex-$(id -u)
    mkdir -m 700 "$PEX_ROOT" 2>/dev/null || true
    if [ -h "$PEX_ROOT" ] || [ ! -O "$PEX_ROOT" ]; then
      echo "$PEX_ROOT belongs to another user: remove it, or set PEX_ROOT to another directory" >&2
      exit 1
    fi
  fi
  export PEX_ROOT
  python=$(PEX_INTERPRETER=1 python3.11 "$packages" -c 'import sys; print(sys.executable)')
fi

# torch makes a directory for its caches when it is imported. Each run gets its own.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export TORCHINDUCTOR_CACHE_DIR="$scratch" TORCHINDUCTOR_FORCE_DISABLE_CACHES=1

case $main in
  /*) ;;
  *) main=$PWD/$main ;;
esac
cd "${BUILD_WORKING_DIRECTORY:-.}"   # `bazel run` does not start in the user's directory
unset PYTHONHOME PYTHONPATH PYTHONOPTIMIZE
# __main__.py finds its own package and the packages of the interpreter, and sets up the rest of the environment.
if [ "$*" = --persistent_worker ]; then
  # Bazel stops a worker by sending SIGTERM to this shell. The shell must pass it on. It would not do that while a command
  # runs in the foreground.
  exec 3<&0
  "$python" -S -s -P "$main" "$@" <&3 3<&- &
  trap 'kill -TERM $!' TERM
  exec 3<&-
  wait $! || wait $! # the signal interrupts the first `wait`
else
  "$python" -S -s -P "$main" "$@"
fi
