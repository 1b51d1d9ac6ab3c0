#!/usr/bin/env python3
"""Checks the Debian packages that cpack makes: debian_package_test.py SOURCE_DIR BUILD_DIR [root]

Without `root` the package ddprun is made and unpacked: its dependencies, its files, lintian's
opinion if lintian is here, and its programs. Nothing is built.

With `root` both packages are installed by apt in a bare Debian 12 that debootstrap makes. A
network is needed. A project then builds with the files of libddprun-dev.
"""
import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import needs

PROGRAMS = {"ddprun", "ddp-rendezvous", "ddp-store", "ddprun-ckpt"}
FILES = {f"bin/{name}" for name in PROGRAMS} | {
    "lib/systemd/system/ddp-rendezvous.service", "lib/sysusers.d/ddp-rendezvous.conf",
    "share/bash-completion/completions/ddprun", "share/doc/ddprun/changelog.Debian.gz",
    "share/doc/ddprun/changelog.gz", "share/doc/ddprun/copyright",
    "share/lintian/overrides/ddprun", "share/man/man1/ddprun.1.gz",
    "share/zsh/vendor-completions/_ddprun"}
# libssl3 is for ddprun-ckpt. Ubuntu 24.04 has another name for it.
DEPENDS = re.compile(r"libc6 \(>= [\d.]+\), libssl3(t64)? \(>= [\d.~]+\)")
JOB = ["--standalone", "--nproc-per-node=2", "sh", "-c", "echo $RANK"]


def run(*command, good=True, **options):
    result = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            check=False, **options)
    assert (result.returncode == 0) == good, (f"{' '.join(map(str, command))} ended with "
                                              f"{result.returncode}:\n{result.stdout}")
    return result.stdout


def make_packages(build, to, *options):
    # No date of this day: a build of the same sources gives the same package.
    run("cpack", "-G", "DEB", "-B", to, *options, cwd=build,
        env=os.environ | {"SOURCE_DATE_EPOCH": "1700000000"})
    return sorted(to.glob("*.deb"))


def check_overrides(source):
    """Checks that a comment stands before each override, or before a list of one tag."""
    for file in sorted((source / "packaging/debian").glob("*.lintian-overrides")):
        before = ""
        for line in file.read_text().splitlines():
            same_tag = before.split(" ")[0] == line.split(" ")[0]
            assert line.startswith("#") or before.startswith("#") or same_tag, (file.name, line)
            before = line


def check_control(package, version):
    assert package.name.startswith(f"ddprun_{version}-1_"), package.name
    field = lambda name: run("dpkg-deb", "--field", package, name).strip()
    assert field("Version") == f"{version}-1"
    assert DEPENDS.fullmatch(field("Depends")), field("Depends")
    assert field("Description").startswith("launcher and rendezvous service"), field("Description")
    print(f"ddprun depends on {field('Depends')}")


def check_files(package, source, root, version):
    run("dpkg-deb", "--extract", package, root)
    files = {str(file.relative_to(root / "usr")) for file in root.rglob("*") if file.is_file()}
    assert files == FILES, files ^ FILES
    control = root.parent / "control"
    run("dpkg-deb", "--control", package, control)
    run("md5sum", "--check", "--quiet", control / "md5sums", cwd=root)
    for script in ("postinst", "prerm", "postrm"):
        run("sh", "-n", control / script)
    unit = (root / "usr/lib/systemd/system/ddp-rendezvous.service").read_text()
    assert "\nExecStart=/usr/bin/ddp-rendezvous " in unit, unit
    words = lambda text: re.sub(r"\n \.\n\s*|\s+", " ", text)
    license_text = (source / "LICENSE").read_text().split("\n\n", 2)[2]
    document = (root / "usr/share/doc/ddprun/copyright").read_text()
    assert words(license_text).strip() in words(document), document
    changes = gzip.decompress((root / "usr/share/doc/ddprun/changelog.Debian.gz").read_bytes())
    assert changes.decode().startswith(f"ddprun ({version}-1) unstable; "), changes
    for name in PROGRAMS:
        sections = run("readelf", "-SW", root / "usr/bin" / name)
        assert ".symtab" not in sections, f"{name} is not stripped"
    print(f"{len(files)} files, as listed")


def check_programs(bin_dir, version):
    for name in sorted(PROGRAMS):
        assert version in run(bin_dir / name, "--version"), name
    assert set(run(bin_dir / "ddprun", *JOB).splitlines()) == {"[rank 0] 0", "[rank 1] 1"}
    print("the unpacked programs run")


def check_with_lintian(packages):
    if not shutil.which("lintian"):
        print("no lintian here: it was not asked (apt-get install lintian)")
        return
    said = run("lintian", "--allow-root", "--fail-on=warning,error", *packages)
    assert not re.search(r"^[EW]: ", said, re.M), said
    print("lintian has nothing to say")


def check_in_root(packages, build, work, version):
    """Installs the packages by apt in a bare Debian 12, upgrades and removes them."""
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        needs.skip("a root of Debian needs root and debootstrap")
    root = work / "root"
    run("debootstrap", "--variant=minbase", "bookworm", root)
    for package in packages:
        shutil.copy(package, root)
    launcher, development = sorted(f"/{package.name}" for package in packages)
    mount = 'mount -t proc none "$0/proc"; exec chroot "$0" "$@"'

    def inside(*command, good=True):
        return run("unshare", "--mount", "--propagation", "private", "--pid", "--fork",
                   "--kill-child", "sh", "-c", mount, root, *command, good=good,
                   env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8",
                        "DEBIAN_FRONTEND": "noninteractive"})

    install = ["apt-get", "install", "-y", "--no-install-recommends"]
    inside("apt-get", "update")
    inside(*install, launcher)
    assert version in inside("ddprun", "--version")
    assert set(inside("ddprun", *JOB).splitlines()) == {"[rank 0] 0", "[rank 1] 1"}
    inside("gzip", "-t", "/usr/share/man/man1/ddprun.1.gz")
    completion = ". /usr/share/bash-completion/completions/ddprun; complete -p ddprun"
    assert "ddprun" in inside("bash", "-c", completion)
    print("ddprun is installed by apt in a bare Debian 12, and runs a job")

    # With systemd an upgrade makes the account of the unit.
    inside("getent", "passwd", "ddp-rendezvous", good=False)
    inside(*install, "systemd", "procps")  # procps has the kill of ExecReload
    inside("dpkg", "--install", launcher)
    account = inside("getent", "passwd", "ddp-rendezvous").split(":")
    assert int(account[2]) < 1000, account
    said = inside("systemd-analyze", "verify", "/lib/systemd/system/ddp-rendezvous.service")
    assert "ddp-rendezvous" not in said, said
    assert inside("systemctl", "is-enabled", "ddp-rendezvous", good=False).strip() == "disabled"
    print(f"systemd knows the unit, and its account has the number {account[2]}")

    inside(*install, development)
    assert "torch" not in inside("dpkg-query", "-W", "-f", "${Package}\n")
    here = pathlib.Path(__file__).parent
    print(run("cmake", f"-DPREFIX={root}/usr", f"-DBUILD_DIR={build}", "-DCOMPONENT=worker",
              "-P", here / "installed_package/run.cmake"))
    print("libddprun-dev is installed by apt without LibTorch, and a project builds with it")

    inside("apt-get", "purge", "-y", "ddprun", "libddprun-dev")
    left = [str(path) for path in (root / "usr").rglob("*ddp*run*")]
    assert not left, left
    print("both are removed without a trace")


def main():
    if len(sys.argv) not in (3, 4):
        sys.exit(f"usage: {sys.argv[0]} SOURCE_DIR BUILD_DIR [root]")
    source, build = (pathlib.Path(argument).resolve() for argument in sys.argv[1:3])
    for program in ("dpkg-deb", "dpkg-shlibdeps", "file"):
        if not shutil.which(program):
            needs.skip(f"cpack needs {program} for a Debian package: scripts/setup --tests")
    version = re.search(r"project\(ddprun VERSION ([\d.]+)",
                        (source / "CMakeLists.txt").read_text())[1]
    check_overrides(source)
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        if sys.argv[3:]:
            packages = make_packages(build, work / "packages")
            assert len(packages) == 2, packages
            check_with_lintian(packages)
            check_in_root(packages, build, work, version)
            return
        [package] = make_packages(build, work / "packages",
                                  "-D", "CPACK_COMPONENTS_ALL=programs;system",
                                  "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=gzip")  # quick
        check_control(package, version)
        check_files(package, source, work / "files", version)
        check_programs(work / "files/usr/bin", version)
        check_with_lintian([package])


main()
