#!/usr/bin/env bash
# Runs the driver, a Python package in the runfiles, with its packages. Its environment is the same on every machine. The
# repository with the description of the packages also links to them, and a local action uses those. With the packages in the
# form for remote executors, each run makes an environment of its own, in which a package is written when it is imported.
# The runfiles of this script come before those of a program that starts it.
if [ -d "$0.runfiles" ] || [ -f "$0.runfiles_manifest" ]; then
  unset RUNFILES_DIR RUNFILES_MANIFEST_FILE
fi
%{runfiles}
set -eu
main=$(rlocation %{package})/%{main}
packages=$(rlocation %{packages})

# torch makes a directory for its caches when it is imported. Each run gets its own.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
export TORCHINDUCTOR_CACHE_DIR="$scratch/torch" TORCHINDUCTOR_FORCE_DISABLE_CACHES=1

if [ -d "$packages" ]; then
  python=%{python} file=%{python_file}
  if [ -n "$file" ]; then
    python=$(rlocation "$file")
  elif [ -z "$python" ]; then # the first line names it
    read -r line < "$packages/python" || true
    case $line in '#!'*) python=${line##* } ;; *) python=python3 ;; esac
  fi
  found=$(command -v -- "$python") || { echo "There is no $python on this machine (PATH=$PATH). %{hint}" >&2; exit 1; }
  "$found" -I -S "$(rlocation %{on_demand})" %{python_version} "$packages" "$scratch/packages"
  python=$scratch/packages/bin/python
else
  real=$(readlink -f -- "$packages")
  venv=$(readlink -f -- "${real%/*}/venv") || venv=${real%/*}/venv
  python=$venv/bin/python
  if [ ! -x "$python" ]; then
    echo "The packages of rules_executorch are not here ($venv). Remote executors and sandboxes that hide files need" \
      "--extra_toolchains=@rules_executorch//toolchain:remote. If the directory was removed, make it again: %{again}" >&2
    exit 1
  fi
  # The actions' keys hold the digest of the Python that the environment was made with.
  status=$(stat -L -c '%s %Y' "$python" 2>/dev/null || stat -L -f '%z %m' "$python")
  if [ "$status" != "$(cat "$venv/interpreter.stat")" ]; then
    echo "The Python of rules_executorch has changed since its packages were built ($(readlink -f -- "$python"))." \
      "Build them again: %{again}" >&2
    exit 1
  fi
  export PYTHONDONTWRITEBYTECODE=1
fi

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
