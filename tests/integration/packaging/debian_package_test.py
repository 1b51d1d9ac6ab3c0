#!/usr/bin/env python3
"""Checks the Debian packages that cpack makes:
debian_package_test.py SOURCE_DIR BUILD_DIR [root [SUITE MIRROR]]

Without `root` the packages are made and unpacked: their fields, files and modes, the programs, and
what lintian reports. Nothing is built.

With `root` both packages are installed by apt in a bare Debian 12 that debootstrap makes, or in the
release of Ubuntu that SUITE and MIRROR name. A network is needed. In Debian a project then builds
with the files of libddprun-dev. Programs that record their arguments take the place of systemctl
and deb-systemd-invoke.
"""
import gzip
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

sys.path.append(f"{sys.path[0]}/../../support")
import needs  # noqa: E402

PROGRAMS = {"ddprun", "ddprun-bench", "ddp-rendezvous", "ddp-store", "ddprun-ckpt"}
FILES = {f"bin/{name}" for name in PROGRAMS} | {
    "lib/systemd/system/ddp-rendezvous.service", "lib/sysusers.d/ddp-rendezvous.conf",
    "share/bash-completion/completions/ddprun", "share/doc/ddprun/changelog.Debian.gz",
    "share/doc/ddprun/changelog.gz", "share/doc/ddprun/copyright",
    "share/lintian/overrides/ddprun", "share/man/man1/ddprun.1.gz",
    "share/zsh/vendor-completions/_ddprun"}
# libssl3 is for ddprun-ckpt. Ubuntu 24.04 has another name for it.
DEPENDS = r"libc6 \(>= [\d.]+\), libssl3(t64)? \(>= [\d.~]+\)"
DEVELOPMENT_DEPENDS = "libssl-dev, nlohmann-json3-dev (>= 3.9)"
# What a removal may leave in the root: the state of apt and dpkg, and the account of the unit.
LEFT = re.compile(r"var/(lib/(apt|dpkg)|cache/(apt|debconf|ldconfig)|log)/.*"
                  r"|etc/(passwd|group|shadow|gshadow|subuid|subgid)-|etc/\.pwd\.lock"
                  r"|etc/ld\.so\.cache")
UNIT = "ddp-rendezvous.service"
JOB = ["--standalone", "--nproc-per-node=2", "sh", "-c", "echo $RANK"]


def run(*command, good=True, **options):
    result = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            check=False, **options)
    assert (result.returncode == 0) == good, (f"{' '.join(map(str, command))} ended with "
                                              f"{result.returncode}:\n{result.stdout}")
    return result.stdout


def make_packages(build, to, *options):
    run("cpack", "-G", "DEB", "-B", to, *options, cwd=build, umask=0o077,
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


def has_libraries(build):
    return "development" in (build / "CPackConfig.cmake").read_text()


def cache_of(build):
    return dict(re.findall(r"^(\w+):\w+=(.*)$", (build / "CMakeCache.txt").read_text(), re.M))


def check_control(package, name, version, depends, description):
    assert package.name.startswith(f"{name}_{version}-1_"), package.name
    field = lambda name: run("dpkg-deb", "--field", package, name).strip()
    assert field("Version") == f"{version}-1"
    assert re.fullmatch(depends, field("Depends")), field("Depends")
    assert field("Description").startswith(description), field("Description")
    print(f"{name} depends on {field('Depends')}")


def check_contents(package, source, build, root, name):
    """Unpacks a package, and checks its modes, its license, and that it names no path of here."""
    listing = run("dpkg-deb", "--contents", package)
    modes = {line.split()[0] for line in listing.splitlines()}
    assert modes <= {"drwxr-xr-x", "-rwxr-xr-x", "-rw-r--r--"}, listing
    run("dpkg-deb", "--extract", package, root)
    document = (root / f"usr/share/doc/{name}/copyright").read_text()
    for file in ("LICENSE", "packaging/THIRD_PARTY"):
        assert (source / file).read_text() in document, (name, file)
    used = [pathlib.Path(value) for key, value in cache_of(build).items()
            if key in ("LibTorch_INCLUDE_DIR", "NCCL_LIBRARY", "CUDART_LIBRARY")]
    places = [str(source), *(str(path.parent) for path in used if path.is_absolute())]
    texts = 0
    for file in root.rglob("*"):
        data = file.read_bytes() if file.is_file() else b"\0"
        if b"\0" not in data:
            texts += 1
            found = [place for place in places if place.encode() in data]
            assert not found, (file, found)
    print(f"{name}: the modes are right, and {texts} text files name no path of this host")


def check_development(root):
    """Checks the flags that pkg-config gives for the places that a user names."""
    [folder] = {file.parent for file in root.rglob("*.pc")}
    packages = sorted(file.stem for file in folder.iterdir())
    flags = run("pkg-config", "--cflags", "--libs", *packages, "--define-variable=torch=/t",
                "--define-variable=nccl=/n", "--define-variable=cudart=/c",
                env=os.environ | {"PKG_CONFIG_PATH": str(folder)})
    assert "-I/t/include " in flags and "-Wl,-rpath,/t/lib" in flags, flags
    if "ddprun-cuda" in packages:
        assert re.search(r" /n/libnccl\.so.* /c/libcudart\.so.*-rpath,/n .*-rpath,/c", flags), flags
    assert len(list(root.rglob("libddprun_worker*.a"))) == len(packages)
    print(f"pkg-config gives the flags of {', '.join(packages)}")


def check_files(package, root, version):
    files = {str(file.relative_to(root / "usr")) for file in root.rglob("*") if file.is_file()}
    assert files == FILES, files ^ FILES
    control = root.parent / "control"
    run("dpkg-deb", "--control", package, control)
    run("md5sum", "--check", "--quiet", control / "md5sums", cwd=root)
    for script in ("postinst", "prerm", "postrm"):
        run("sh", "-n", control / script)
    unit = (root / f"usr/lib/systemd/system/{UNIT}").read_text()
    assert "\nExecStart=/usr/bin/ddp-rendezvous " in unit, unit
    changes = gzip.decompress((root / "usr/share/doc/ddprun/changelog.Debian.gz").read_bytes())
    assert changes.decode().startswith(f"ddprun ({version}-1) unstable; "), changes
    for name in PROGRAMS:
        sections = run("readelf", "-SW", root / "usr/bin" / name)
        assert ".symtab" not in sections, f"{name} is not stripped"
    print(f"{len(files)} files, as listed")


def check_programs(bin_dir, version):
    for name in sorted(PROGRAMS):
        assert version in run(bin_dir / name, "--version"), name
    lines = run(bin_dir / "ddprun", *JOB).splitlines()  # with remarks on what other tests have left
    assert {"[rank 0] 0", "[rank 1] 1"} <= set(lines), lines
    print("the unpacked programs run")


def check_with_lintian(packages):
    if not shutil.which("lintian"):
        needs.skip("lintian is not installed, so it checked no package (scripts/setup --tests)")
    said = run("lintian", "--allow-root", "--fail-on=warning,error", *packages)
    assert not re.search(r"^[EW]: ", said, re.M), said
    print("lintian reports no error and no warning")


class Root:
    """A bare Debian or Ubuntu."""

    def __init__(self, folder, suite="bookworm", mirror=None):
        self.folder = folder
        self.path = "/usr/sbin:/usr/bin:/sbin:/bin"
        # All releases of Ubuntu have one script. Debian has no package with Ubuntu's keys.
        of_ubuntu = [mirror, "/usr/share/debootstrap/scripts/gutsy"] if mirror else []
        options = ["--no-check-gpg", "--components=main,universe"] if mirror else []
        run("debootstrap", "--variant=minbase", *options, suite, folder, *of_ubuntu)
        self("apt-get", "update")

    def __call__(self, *command, good=True):
        """Runs a command inside."""
        mount = 'mount -t proc none "$0/proc"; exec chroot "$0" "$@"'
        return run("unshare", "--mount", "--propagation", "private", "--pid", "--fork",
                   "--kill-child", "sh", "-c", mount, self.folder, *command, good=good,
                   env={"PATH": self.path, "LANG": "C.UTF-8", "DEBIAN_FRONTEND": "noninteractive"})

    def install(self, *packages):
        self("apt-get", "install", "-y", "--no-install-recommends", *packages)

    def files(self):
        return {str(path.relative_to(self.folder)) for top in ("usr", "etc", "var")
                for path in (self.folder / top).rglob("*")}

    def check_trace(self, before):
        left = sorted(path for path in self.files() - before if not LEFT.fullmatch(path))
        assert not left, left

    def record_calls(self):
        """Puts programs that record their arguments before systemctl and deb-systemd-invoke."""
        (self.folder / "run/systemd/system").mkdir(parents=True, exist_ok=True)
        for name in ("systemctl", "deb-systemd-invoke"):
            program = self.folder / "usr/local/bin" / name
            program.write_text(f'#!/bin/sh\necho "{name} $*" >>/calls\n')
            program.chmod(0o755)
        self.path = "/usr/local/bin:" + self.path

    def calls_of(self, *command):
        (self.folder / "calls").write_text("")
        self(*command)
        calls = (self.folder / "calls").read_text().splitlines()
        return [call for call in calls if call != "systemctl daemon-reload"]  # deb-systemd-helper's


def check_scripts(root, package):
    """Checks the calls of the maintainer scripts under systemd, and that nothing is left."""
    root.record_calls()
    before = root.files()
    reload = "systemctl --system daemon-reload"
    calls = root.calls_of("dpkg", "--install", package)
    assert calls == [reload], calls
    calls = root.calls_of("dpkg", "--install", package)
    assert calls == [reload, f"deb-systemd-invoke try-restart {UNIT}"], calls
    root("/usr/bin/systemctl", "--root=/", "enable", UNIT)
    calls = root.calls_of("dpkg", "--remove", "ddprun")
    assert calls == [f"deb-systemd-invoke stop {UNIT}", reload], calls
    calls = root.calls_of("dpkg", "--purge", "ddprun")
    assert not calls, calls
    root.check_trace(before)
    print("install, upgrade, remove and purge make the calls of dh_installsystemd --no-enable")


def check_in_root(packages, build, work, version, *release):
    """Installs the packages by apt in a bare root, upgrades and removes them."""
    if os.geteuid() != 0 or not shutil.which("debootstrap"):
        needs.skip("a root of Debian needs root and debootstrap (apt-get install debootstrap)")
    root = Root(work / "root", *release)
    before = root.files()
    for package in packages:
        shutil.copy(package, root.folder)
    launcher, development = sorted(f"/{package.name}" for package in packages)
    root.install(launcher)
    assert version in root("ddprun", "--version")
    assert set(root("ddprun", *JOB).splitlines()) == {"[rank 0] 0", "[rank 1] 1"}
    root("gzip", "-t", "/usr/share/man/man1/ddprun.1.gz")
    completion = ". /usr/share/bash-completion/completions/ddprun; complete -p ddprun"
    assert "ddprun" in root("bash", "-c", completion)
    root("apt-get", "purge", "-y", "--auto-remove", "ddprun")
    root.check_trace(before)
    print("ddprun is installed by apt in a bare root, runs a job, and is removed")

    # With systemd the package makes the account of the unit.
    root.install("systemd", "procps", "libssl3")
    root("getent", "passwd", "ddp-rendezvous", good=False)
    root.install(launcher)
    account = root("getent", "passwd", "ddp-rendezvous").split(":")
    assert int(account[2]) < 1000, account
    said = root("systemd-analyze", "verify", f"/lib/systemd/system/{UNIT}")
    assert "ddp-rendezvous" not in said, said
    assert root("systemctl", "is-enabled", UNIT, good=False).strip() == "disabled"
    print(f"systemd knows the unit, and its account has the number {account[2]}")
    root("apt-get", "purge", "-y", "ddprun")
    check_scripts(root, launcher)

    root.install(development)
    assert "torch" not in root("dpkg-query", "-W", "-f", "${Package}\n")
    if release:
        return  # the compiler of this host cannot link with the C library of another release
    here = pathlib.Path(__file__).parent
    torch = pathlib.Path(cache_of(build)["LibTorch_INCLUDE_DIR"]).parent
    print(run("cmake", f"-DPREFIX={root.folder}/usr", f"-DBUILD_DIR={build}", "-DCOMPONENT=worker",
              "-P", here / "installed_package/run.cmake",
              env=os.environ | {"CMAKE_PREFIX_PATH": str(torch)}))
    print("libddprun-dev is installed by apt without LibTorch, and a project builds with it")


def main():
    if len(sys.argv) not in (3, 4, 6):
        sys.exit(f"usage: {sys.argv[0]} SOURCE_DIR BUILD_DIR [root [SUITE MIRROR]]")
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
            check_in_root(packages, build, work, version, *sys.argv[4:])
            check_with_lintian(packages)
            return
        packages = make_packages(build, work / "packages",
                                 "-D", "CPACK_DEBIAN_COMPRESSION_TYPE=gzip")  # quick
        assert len(packages) == 1 + has_libraries(build), packages
        check_control(packages[0], "ddprun", version, DEPENDS, "launcher and rendezvous service")
        check_contents(packages[0], source, build, work / "files", "ddprun")
        check_files(packages[0], work / "files", version)
        check_programs(work / "files/usr/bin", version)
        for package in packages[1:]:
            check_control(package, "libddprun-dev", version, re.escape(DEVELOPMENT_DEPENDS),
                          "data-parallel training for LibTorch")
            check_contents(package, source, build, work / "development", "libddprun-dev")
            check_development(work / "development")
        check_with_lintian(packages[:1])  # 17 s for the libraries: that is for `root`


main()
