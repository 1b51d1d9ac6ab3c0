#!/usr/bin/env python3
"""Tests scripts/release: release_test.py SOURCE_DIR [everything]

Without `everything`: what it refuses, each in one line, in a small repository. Nothing is built.

With `everything`: makes a trial release in a clone of the newest commit. A package index is
needed. LibTorch is that of .venv.
"""
import json
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import needs


def run(*command, **options):
    return subprocess.run(command, text=True, capture_output=True, check=False, **options)


def version_of(source):
    return re.search(r"project\(ddprun VERSION (\S+)", (source / "CMakeLists.txt").read_text())[1]


def git(folder, *arguments):
    result = run("git", "-C", folder, "-c", "user.name=test", "-c", "user.email=test@test.invalid",
                 *arguments)
    assert result.returncode == 0, (arguments, result)


def make_repository(source, folder):
    (folder / "scripts").mkdir(parents=True)
    for name in ("scripts/release", "CMakeLists.txt", ".gitignore"):
        shutil.copy(source / name, folder / name)
    (folder / "CHANGELOG.md").write_text("# Changelog\n\n## Unreleased\n")
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=first")


def check_refusals(source, folder):
    def refuses(expected, *arguments, code=1):
        result = run(folder / "scripts/release", *arguments)
        assert result.returncode == code, result
        assert re.fullmatch(f"release: {expected}\n", result.stderr) and not result.stdout, result
        assert not (folder / "dist").exists()

    version = version_of(source)
    make_repository(source, folder)
    refuses(r"unknown argument '--fast' \(expected scripts/release \[TAG\]\)", "--fast", code=2)
    refuses(r"there is no tag 'v7': make it with git tag, .*", "v7")
    git(folder, "tag", "v9.9.9")
    refuses(rf"the tag 'v9.9.9' does not equal the version {version} of .*: name it v{version}, .*",
            "v9.9.9")
    git(folder, "tag", f"v{version}")
    refuses(rf"CHANGELOG.md has no section '## {version}': rename 'Unreleased', .*", f"v{version}")
    (folder / "new").touch()
    refuses(r"the work tree has changes \(1 files, first 'new'\): commit or remove them")

    lists = folder / "CMakeLists.txt"
    lists.write_text(lists.read_text().replace(f"VERSION {version}", "VERSION 0.2"))
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message=second")
    refuses(r"CMakeLists.txt has the version '0.2' \(expected MAJOR.MINOR.PATCH\)")
    shutil.rmtree(folder / ".git")
    refuses(r"\S+ is not a git work tree: run this in a clone")
    print("7 mistakes are refused, each in one line")


def check_everything(source, folder):
    if not (source / ".venv/bin/python3").exists():
        needs.skip("there is no .venv with LibTorch: scripts/setup --tests")
    clone = folder / "clone"
    git(folder, "clone", "--quiet", source, clone)
    (clone / ".venv").symlink_to(source / ".venv")
    result = run(clone / "scripts/release")
    print(result.stdout)
    assert result.returncode == 0, result.stderr
    dist = clone / "dist"
    version = version_of(source)
    names = sorted(file.name for file in dist.iterdir())
    expected = [r"SHA256SUMS", rf"ddprun-{version}-py3-none-manylinux_2_\d+_\w+\.whl",
                rf"ddprun-{version}\.cdx\.json", rf"ddprun-{version}\.tar\.gz",
                rf"ddprun_{version}-1_\w+\.deb", rf"libddprun-dev_{version}-1_\w+\.deb"]
    assert len(names) == len(expected), names
    for name, pattern in zip(names, expected):
        assert re.fullmatch(pattern, name), (name, pattern)
        assert f"dist/{name} " in result.stdout, name
    assert run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=dist).returncode == 0
    parts = {part["name"]: part for part in
             json.loads((dist / f"ddprun-{version}.cdx.json").read_text())["components"]}
    assert {"Boost", "CLI11", "nlohmann_json", "GCC run-time"} <= {
        name for name, part in parts.items() if part["scope"] == "required"}, parts
    assert run("git", "status", "--porcelain", cwd=clone).stdout == ""
    # The archive depends on the commit alone.
    tar = subprocess.run(["git", "archive", f"--prefix=ddprun-{version}/", "HEAD"], cwd=clone,
                         capture_output=True, check=True).stdout
    unpacked = subprocess.run(["gzip", "-dc", dist / f"ddprun-{version}.tar.gz"],
                              capture_output=True, check=True).stdout
    assert tar == unpacked


def main():
    if len(sys.argv) not in (2, 3):
        sys.exit(f"usage: {sys.argv[0]} SOURCE_DIR [everything]")
    source = pathlib.Path(sys.argv[1]).resolve()
    with tempfile.TemporaryDirectory() as folder:
        if sys.argv[2:]:
            check_everything(source, pathlib.Path(folder))
        else:
            check_refusals(source, pathlib.Path(folder).resolve() / "small")


main()
