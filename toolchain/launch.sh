#!/bin/sh
# Runs a Python package of the runfiles on the packages of the PEX, in surroundings that are the same everywhere.
# Beside the real PEX, in the repository that built it, lies the same unpacked: local actions use that. Elsewhere, on a
# remote executor, the PEX unpacks itself once, below PEX_ROOT.
set -eu

runfiles=$0.runfiles
[ -d "$runfiles" ] || runfiles=${RUNFILES_DIR:?"no runfiles beside $0, and RUNFILES_DIR does not name them"}
case $runfiles in
  /*) ;;
  *) runfiles=$PWD/$runfiles ;;
esac
main=$runfiles/%{main}
packages=$runfiles/%{packages}

real=$(readlink -f -- "$packages")
python=${real%/*}/venv/bin/python
if [ -x "$python" ]; then
  export PYTHONDONTWRITEBYTECODE=1
else
  if [ -z "${PEX_ROOT:-}" ]; then
    # What lies there is run: a directory of this user's own.
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

# torch makes a directory for its caches when it is imported: one that this run alone sees.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export TORCHINDUCTOR_CACHE_DIR="$scratch" TORCHINDUCTOR_FORCE_DISABLE_CACHES=1

cd "${BUILD_WORKING_DIRECTORY:-.}"   # `bazel run` starts elsewhere than its user
unset PYTHONHOME PYTHONPATH PYTHONOPTIMIZE
# The driver's file finds its own package and those beside the interpreter, and settles the rest of the surroundings.
if [ "$*" = --persistent_worker ]; then
  # Bazel ends a worker by ending this shell, which has to pass that on; a shell that waits for a command does not.
  exec 3<&0
  "$python" -S -s -P "$main" "$@" <&3 3<&- &
  trap 'kill -TERM $!' TERM
  exec 3<&-
  wait $! || wait $! # the signal ends the first
else
  "$python" -S -s -P "$main" "$@"
fi
