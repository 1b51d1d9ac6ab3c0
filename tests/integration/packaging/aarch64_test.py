#!/usr/bin/env python3
"""Cross-compiles for aarch64, and runs the unit tests under qemu-user: aarch64_test.py SOURCE_DIR

It installs nothing. Without the cross compiler or the arm64 libraries it is skipped.
"""
import pathlib
import shutil
import subprocess
import sys

sys.path.append(f"{sys.path[0]}/../../support")
import needs  # noqa: E402


def main():
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} SOURCE_DIR")
    source = pathlib.Path(sys.argv[1])
    for program in ("aarch64-linux-gnu-g++", "qemu-aarch64-static"):
        if not shutil.which(program):
            needs.skip(f"there is no {program}: scripts/setup --aarch64")
    if not (source / "build/aarch64-root/complete").exists():
        needs.skip("build/aarch64-root has no arm64 libraries: scripts/setup --aarch64")
    for command in (["cmake", "--preset"], ["cmake", "--build", "--preset"], ["ctest", "--preset"]):
        code = subprocess.run([*command, "aarch64"], cwd=source, check=False).returncode
        if code != 0:
            sys.exit(f"{' '.join(command)} aarch64 ended with {code}")


main()
