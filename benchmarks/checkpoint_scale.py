#!/usr/bin/env python3
"""Measures saving and restoring large checkpoints, and their floors.

    ninja -C build/release benchmarks
    benchmarks/checkpoint_scale.py [--bin build/release/bin] [--mib 1024 4096] [--tensors 100000]
                                   [--ranks 1 2] [--directory DIR]

It runs checkpoint_cost, which says what it measures: for each number of ranks saves of each size,
then restores, in new processes and with the file dropped from the page cache. The directory needs
room for three checkpoints of each size.
"""
import argparse
import pathlib
import shutil
import subprocess
import sys
import tempfile


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bin", type=pathlib.Path, default="build/release/bin")
    parser.add_argument("--mib", type=int, nargs="+", default=[1024])
    parser.add_argument("--tensors", type=int, nargs="+", default=[])
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--directory", type=pathlib.Path)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    parent = pathlib.Path(tempfile.mkdtemp(prefix="ddprun-checkpoint-scale-",
                                           dir=options.directory))
    try:
        for ranks in options.ranks:
            run = parent / str(ranks)
            program = [str(options.bin / "ddprun"), "--standalone", f"--nproc-per-node={ranks}",
                       "--no-python", str(options.bin / "checkpoint_cost"), "--directory", str(run),
                       "--mib", *map(str, options.mib)]
            if options.tensors:
                program += ["--tensors", *map(str, options.tensors)]
            subprocess.run([*program, "--keep", "--rounds", str(options.rounds)], check=True)
            subprocess.run([*program, "--restore"], check=True)
            shutil.rmtree(run)
    finally:
        shutil.rmtree(parent)
    return 0


if __name__ == "__main__":
    sys.exit(main())
