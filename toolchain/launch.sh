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

unset PYTHONHOME PYTHONSTARTUP PYTHONOPTIMIZE
package=${main%/*}
export PYTHONPATH="${package%/*}" PYTHONSAFEPATH=1 PYTHONNOUSERSITE=1 PYTHONHASHSEED=0
export ATEN_CPU_CAPABILITY=default MKL_CBWR=COMPATIBLE # the same arithmetic on every processor
cd "${BUILD_WORKING_DIRECTORY:-.}"   # `bazel run` starts elsewhere than its user
if [ "$*" = --persistent_worker ]; then
  # Bazel ends a worker by ending this shell, which has to pass that on; a shell that waits for a command does not.
  exec 3<&0
  "$python" -m "${package##*/}" "$@" <&3 3<&- &
  trap 'kill -TERM $!' TERM
  exec 3<&-
  wait $! || wait $! # the signal ends the first
else
  "$python" -m "${package##*/}" "$@"
fi
