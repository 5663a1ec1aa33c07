"""Measures what kernels add to an application: all portable ones, the selected ones, and their dtypes only.

    python -m benchmarks.kernels.run --executorch ~/executorch out/tiny_lm.pte

ExecuTorch's wheel has no sources of kernels, so this needs a checkout of ExecuTorch's release, in a directory of the
name `executorch`. It also needs CMake and a compiler.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import executorch

from etbuild.cli import main as driver

HERE = Path(__file__).resolve().parent
RUNNER = HERE.parents[1] / "tests/helpers/run_kernels.cc"
ROWS = {"everything": "all portable kernels", "operators": "the selected operators", "dtypes": "and only their dtypes"}


def main() -> int:
    """Builds the programs and prints the bytes that kernels add to one without kernels."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--executorch", type=Path, required=True, metavar="DIR", help="a checkout of ExecuTorch")
    parser.add_argument("--build", type=Path, default=Path("build/kernels"), metavar="DIR", help="for what is built")
    parser.add_argument(
        "--wheel", type=Path, default=Path(executorch.__path__[0]), help="the unpacked wheel of another machine"
    )
    parser.add_argument("--toolchain-file", type=Path, help="CMake's file for another machine")
    parser.add_argument("programs", type=Path, nargs="+", metavar="PTE")
    options = parser.parse_args()
    cmake = Path(driver.__file__).parents[1] / "cmake"
    paths = {
        "etbuild_DIR": cmake,
        "ETBUILD_EXECUTABLE": Path(sys.executable).with_name("etbuild"),
        "EXECUTORCH": options.executorch.resolve(),
        "RUNNER": RUNNER,
        "WHEEL": options.wheel.resolve(),
    }
    if options.toolchain_file:
        paths["CMAKE_TOOLCHAIN_FILE"] = options.toolchain_file.resolve()
    programs = ";".join(str(path.resolve()) for path in options.programs)
    defined = [f"-D{name}={path}" for name, path in paths.items()]
    configure = ["cmake", "-S", str(HERE), "-B", str(options.build), f"-DPROGRAMS={programs}", *defined]
    for command in (configure, ["cmake", "--build", str(options.build), "--parallel", "2"]):
        subprocess.run(command, check=True, stdout=sys.stderr)
    bare = (options.build / "with_executorch").stat().st_size
    for name, row in ROWS.items():
        size = (options.build / f"with_{name}").stat().st_size - bare
        print(f"{row:<24}{size / 1024:>9.1f} kB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
