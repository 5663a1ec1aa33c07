#!/usr/bin/env bash
# Runs the driver under Buck2: launch.sh PACKAGES MAIN ARGUMENT... PACKAGES is a packages.pex, MAIN the driver's __main__.py.
# The packages are unpacked once, below PEX_ROOT.
set -euo pipefail
packages=$1 main=$2
shift 2
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
# The first line of the packages names their Python, such as `#!/usr/bin/env python3.12`.
read -r line < "$packages" || true
case $line in '#!'*) named=${line##* } ;; *) named=python3 ;; esac
command -v -- "$named" > /dev/null || { echo "There is no $named on this machine (PATH=$PATH), and $packages is for it" >&2; exit 1; }
# The file runs the interpreter that knows the packages. The driver's sources are read where they are.
export PYTHONDONTWRITEBYTECODE=1
unset PYTHONHOME PYTHONPATH PYTHONOPTIMIZE
python=$("$named" "$packages" -c 'import sys; print(sys.executable)')

# torch makes a directory for its caches when it is imported. Each run gets its own.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export TORCHINDUCTOR_CACHE_DIR="$scratch" TORCHINDUCTOR_FORCE_DISABLE_CACHES=1
if [ "$*" = --persistent_worker ]; then
  # A worker is stopped with SIGTERM to this shell, which passes it on: it would not while a command runs in the foreground.
  exec 3<&0
  "$python" -S -s -P "$main" "$@" <&3 3<&- &
  trap 'kill -TERM $!' TERM
  exec 3<&-
  wait $! || wait $!
else
  "$python" -S -s -P "$main" "$@"
fi
