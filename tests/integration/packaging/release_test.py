#!/usr/bin/env python3
"""Tests scripts/release: release_test.py SOURCE_DIR [everything]

Without `everything`: what it refuses, each in one line, in a small repository. Nothing is built.

With `everything`: makes the release of a tag, and then a trial of the commit after it, in a clone
of the newest commit. A package index is needed. LibTorch is that of .venv.
"""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import venv

sys.path.append(f"{sys.path[0]}/../../support")
import needs  # noqa: E402


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
    refused = 0

    def refuses(expected, *arguments, code=1, **environment):
        nonlocal refused
        refused += 1
        clean = {name: value for name, value in os.environ.items()
                 if name not in ("CMAKE_PREFIX_PATH", "Torch_DIR")}
        result = run(sys.executable, folder / "scripts/release", *arguments,
                     env=clean | environment)
        assert result.returncode == code, result
        assert re.fullmatch(f"release: {expected}\n", result.stderr) and not result.stdout, result
        assert not (folder / "build").exists()

    version = version_of(source)
    make_repository(source, folder)
    for argument in ("--fast", ""):
        refuses(rf"unknown argument '{argument}' \(expected scripts/release \[TAG\]\)", argument,
                code=2)
    refuses(r"there is no tag 'v7': make it with git tag, .*", "v7")
    git(folder, "tag", "v9.9.9")
    refuses(rf"the tag 'v9.9.9' does not equal the version {version} of .*: name it v{version}, .*",
            "v9.9.9")
    git(folder, "tag", f"v{version}")
    refuses(rf"CHANGELOG.md has no section '## {version}': rename 'Unreleased', .*", f"v{version}")
    (folder / "new").touch()
    refuses(r"the work tree has changes \(1 files, first 'new'\): commit or remove them")

    def commit(message):
        git(folder, "add", "--all")
        git(folder, "commit", "--quiet", f"--message={message}")
        git(folder, "tag", "--force", f"v{version}")

    (folder / "new").unlink()
    changes = folder / "CHANGELOG.md"
    changes.write_text(f"# Changelog\n\n## {version}-rc1\n")
    commit("second")
    refuses(rf"CHANGELOG.md has no section '## {version}': .*", f"v{version}")
    changes.write_text(f"# Changelog\n\n## [{version}] - 2026-01-01\n")
    commit("third")
    refuses(r"there is no LibTorch, and a release has libddprun-dev: run scripts/setup, or .*",
            f"v{version}")
    dist = folder / "dist"
    (dist / version).mkdir(parents=True)
    refuses(rf"dist/{version} exists already: remove it to make it again", f"v{version}")
    shutil.rmtree(dist)
    dist.symlink_to(folder)
    refuses(r"\S+/dist is not a folder: remove it", f"v{version}")
    dist.unlink()

    lists = folder / "CMakeLists.txt"
    lists.write_text(lists.read_text().replace(f"VERSION {version}", "VERSION 0.2"))
    commit("fourth")
    refuses(r"CMakeLists.txt has the version '0.2' \(expected MAJOR.MINOR.PATCH\)")
    lists.unlink()
    commit("fifth")
    refuses(rf"v{version} has no CMakeLists.txt with 'project\(ddprun VERSION': .*", f"v{version}")
    refuses(r"git rev-parse failed in \S+: fatal: detected dubious ownership .*safe.directory.*",
            GIT_TEST_ASSUME_DIFFERENT_OWNER="1", HOME=str(folder), GIT_CONFIG_NOSYSTEM="1")
    refuses(r"git is missing: .*", PATH=str(folder))
    shutil.rmtree(folder / ".git")
    refuses(r"git rev-parse failed in \S+: fatal: not a git repository .*")
    print(f"{refused} mistakes are refused, each in one line")


def check_everything(source, folder):
    if not (source / ".venv/bin/python3").exists():
        needs.skip("there is no .venv with LibTorch: scripts/setup --tests")
    clone = folder / "clone"
    git(folder, "clone", "--quiet", source, clone)
    (clone / ".venv").symlink_to(source / ".venv")
    version = version_of(source)
    changes = clone / "CHANGELOG.md"
    changes.write_text(changes.read_text().replace("## Unreleased", f"## {version}", 1))
    git(clone, "commit", "--quiet", "--all", "--allow-empty", "--message=release")
    git(clone, "tag", "--force", "--annotate", f"--message={version}", f"v{version}")
    (clone / "next").touch()
    git(clone, "add", "next")
    git(clone, "commit", "--quiet", "--message=next")
    check_release(clone, version, f"v{version}", folder / "tagged")
    check_release(clone, version, None, folder / "trial")


def check_release(clone, version, tag, folder):
    """Makes a release of a tag, or a trial of HEAD, and checks its files."""
    folder.mkdir()
    result = run(clone / "scripts/release", *[tag] if tag else [], umask=0o077)
    print(result.stdout, flush=True)
    assert result.returncode == 0, result.stderr
    commit = run("git", "rev-parse", f"{tag or 'HEAD'}^{{commit}}", cwd=clone).stdout[:12]
    mark = "" if tag else f"trial.{commit}"
    name = f"{version}~{mark}" if mark else version
    dist = clone / "dist" / name
    build_tag = f"-0{mark}" if mark else ""
    names = sorted(file.name for file in dist.iterdir())
    expected = [r"SHA256SUMS", rf"ddprun-{version}{build_tag}-py3-none-manylinux_2_\d+_\w+\.whl",
                rf"ddprun-{name}\.cdx\.json", rf"ddprun-{name}\.tar\.gz",
                rf"ddprun_{name}-1_\w+\.deb", rf"libddprun-dev_{name}-1_\w+\.deb"]
    assert len(names) == len(expected), names
    for file, pattern in zip(names, expected):
        assert re.fullmatch(pattern, file), (file, pattern)
        assert f"dist/{name}/{file} " in result.stdout, file
        assert (dist / file).stat().st_mode & 0o777 == 0o644, file
    assert run("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=dist).returncode == 0
    scopes = {part["name"]: part["scope"] for part in
              json.loads((dist / f"ddprun-{name}.cdx.json").read_text())["components"]}
    required = {"Boost", "CLI11", "nlohmann_json", "GCC run-time", "OpenSSL", "glibc"}
    optional = {"hwloc", "munge", "NVML", "LibTorch", "NCCL", "CUDA run-time"}
    expected = dict.fromkeys(required, "required") | dict.fromkeys(optional, "optional")
    assert scopes == expected, scopes
    assert run("git", "status", "--porcelain", cwd=clone).stdout == ""
    # The archive depends on the commit alone.
    tar = subprocess.run(["git", "-c", "tar.umask=0022", "archive", f"--prefix=ddprun-{version}/",
                          commit], cwd=clone, capture_output=True, check=True).stdout
    unpacked = subprocess.run(["gzip", "-dc", dist / f"ddprun-{name}.tar.gz"],
                              capture_output=True, check=True).stdout
    assert tar == unpacked
    assert f"sources of commit {commit}\n" in result.stdout
    check_wheel(next(dist.glob("*.whl")), version, folder)
    for package in dist.glob("*.deb"):
        check_package(package, name, clone, folder / package.name)


def check_wheel(wheel, version, folder):
    """Installs the wheel, and runs a job of two workers."""
    venv.create(folder / "venv", with_pip=True)
    programs = folder / "venv/bin"
    result = run(programs / "pip", "install", "--quiet", "--no-index", wheel)
    assert result.returncode == 0, result
    assert version in run(programs / "ddprun", "--version").stdout
    result = run(programs / "ddprun", "--standalone", "--nproc-per-node=2", "sh", "-c",
                 "echo $RANK")
    assert set(result.stdout.splitlines()) == {"[rank 0] 0", "[rank 1] 1"}, result
    print(f"{wheel.name} runs a job")


def check_package(package, name, clone, root):
    assert run("dpkg-deb", "--field", package, "Version").stdout == f"{name}-1\n"
    if package.name.startswith("lib"):
        recommends = run("dpkg-deb", "--field", package, "Recommends").stdout
        assert recommends == f"ddprun (= {name}-1)\n", recommends
    assert run("dpkg-deb", "--extract", package, root).returncode == 0
    files = [file for file in root.rglob("*") if file.is_file()]
    assert files
    named = [file for file in files if str(clone).encode() in file.read_bytes()]
    assert not named, f"{named} name the folder that the release was built in"


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
