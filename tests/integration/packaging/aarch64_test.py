#!/usr/bin/env python3
"""Cross-compiles for aarch64, and runs the unit tests under qemu-user: aarch64_test.py SOURCE_DIR

It installs nothing. Without the cross compiler or the arm64 libraries it is skipped.
"""
import pathlib
import re
import shutil
import subprocess
import sys

sys.path.append(f"{sys.path[0]}/../../support")
import needs  # noqa: E402


def check_names(tests):
    """GoogleTest says nothing about a name in a filter that no test has."""
    cases = set()
    for file in tests.rglob("*_test.cc"):
        cases |= set(re.findall(r"^TEST(?:_F|_P)?\((\w+), (\w+)\)", file.read_text(), re.M))
    for line in (tests / "not_under_qemu.txt").read_text().splitlines():
        name, _, reason = line.partition(": ")
        if not line.startswith("#") and (tuple(name.split(".")) not in cases or not reason):
            sys.exit(f"tests/not_under_qemu.txt: no test or no reason in '{line}'")


def main():
    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} SOURCE_DIR")
    source = pathlib.Path(sys.argv[1])
    check_names(source / "tests")
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
