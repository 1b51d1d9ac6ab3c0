#!/usr/bin/env python3
"""Checks that cmake --install works after scripts/quickstart: install_test.py SOURCE_DIR
BUILD_DIR

The targets that scripts/quickstart builds must make every file that the install takes from the
build tree. If a file is missing, the install must end before it writes anything. Nothing is
built here.
"""
import pathlib
import re
import subprocess
import sys
import tempfile


def quickstart_targets(source):
    text = (source / "scripts/quickstart").read_text()
    return re.search(r"^scripts/build release ([\w\- ]+?) *(#.*)?$", text, re.M)[1].split()


def installed_files(build):
    """Returns the built files that the install copies, relative to the build tree."""
    text = (build / "cmake_install.cmake").read_text()
    files = re.findall(r'TYPE (?:EXECUTABLE|STATIC_LIBRARY|FILE) FILES "([^"]+)"', text)
    # Files that the configuration writes (package files, the unit) exist without a build.
    return {str(pathlib.Path(f).relative_to(build)) for f in files
            if f.startswith(f"{build}/") and re.search(r"/bin/|\.a$|/printed/", f)}


def check_targets(source, build):
    wanted = installed_files(build)
    assert {"bin/ddprun", "bin/ddp-store", "printed/ddprun.1"} <= wanted, wanted
    known = set(subprocess.run(["ninja", "-C", build, "-t", "targets", "all"], capture_output=True,
                               text=True, check=True).stdout.replace(": ", "\n").split("\n"))
    targets = [target for target in quickstart_targets(source) if target in known]
    assert "ddprun_installed" in targets, f"scripts/quickstart builds {targets}"
    # All commands that a build from nothing would run.
    commands = subprocess.run(["ninja", "-C", build, "-t", "commands", *targets],
                              capture_output=True, text=True,
                              check=True).stdout.replace(f"{build}/", "").split()
    missing = sorted(wanted - set(commands))
    assert not missing, f"scripts/quickstart builds {targets}, which does not make {missing}"
    print(f"the targets of scripts/quickstart make all {len(wanted)} files")


def check_refusal(build, work):
    """Installs as if ddp-store were not built."""
    script = work / "cmake_install.cmake"
    text = (build / "cmake_install.cmake").read_text()
    script.write_text(text.replace(f"{build}/bin/ddp-store", f"{build}/bin/ddp-store-not-built"))
    prefix = work / "prefix"
    result = subprocess.run(["cmake", f"-DCMAKE_INSTALL_PREFIX={prefix}", "-P", script],
                            capture_output=True, text=True, check=False)
    said = " ".join((result.stdout + result.stderr).split())
    assert result.returncode != 0, said
    assert re.search(r"bin/\S+ is not built: nothing was installed; run cmake --build", said), said
    assert not prefix.exists(), [str(p) for p in prefix.rglob("*")]
    print("where one is missing the install ends before it writes anything")


def check_modes(build, work):
    """Installs under a strict umask: all users may still read the files."""
    prefix = work / "strict"
    subprocess.run(["cmake", "--install", build, "--prefix", prefix, "--component", "system"],
                   stdout=subprocess.DEVNULL, check=True, umask=0o077)
    modes = {file.name: file.stat().st_mode & 0o777 for file in prefix.rglob("*") if file.is_file()}
    assert "ddp-rendezvous.service" in modes and set(modes.values()) == {0o644, 0o755}, modes
    print("the caller's umask does not decide the modes of files")


def main():
    if len(sys.argv) != 3:
        sys.exit(f"usage: {sys.argv[0]} SOURCE_DIR BUILD_DIR")
    source, build = (pathlib.Path(a).resolve() for a in sys.argv[1:])
    check_targets(source, build)
    with tempfile.TemporaryDirectory() as work:
        check_refusal(build, pathlib.Path(work))
        check_modes(build, pathlib.Path(work))


main()
