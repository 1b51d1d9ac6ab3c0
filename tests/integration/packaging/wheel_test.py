"""Tests the wheel of `pip install .`: its contents, its requirements, and that its programs
and its package run alone.

argv: the folder of the sources, a build folder (kept, so that the next build is quick), the
C++ compiler, and more options of CMake (-DNAME=VALUE ...). With --auditwheel as the first word it
asks auditwheel instead whether the wheel may have a manylinux tag, in an environment that it makes.
With --pytorch it installs the wheel without PyTorch, and with several of its versions, one after
the other (6 GB each), and prints a line for each: what the package and the backend do there.

The wheel is installed and run under a root that has a Python and the libraries that Python and
the programs are linked with, file by file. Nothing else is there: no compiler, no header, no
Boost, no PyTorch. wheel_probe.py runs there. Nothing is downloaded: scikit-build-core is the
one of this python.
"""
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile

sys.path.append(f"{sys.path[0]}/../../support")
import needs  # noqa: E402

PROGRAMS = {"ddprun", "ddprun-bench", "ddp-rendezvous", "ddp-store"}
LICENSES = ("LICENSE", "packaging/THIRD_PARTY")
DATA = {"man/man1/ddprun.1", "bash-completion/completions/ddprun", "zsh/site-functions/_ddprun"}
# Libraries of every glibc system. OpenSSL is loaded for keys, hwloc to bind workers.
ALLOWED = re.compile(
    r"linux-(vdso|gate)\.so\.1|ld-linux[\w-]*\.so\.\d|(libc|libm|libdl|librt|libpthread)\.so\.\d")


def run(*command, **options) -> str:
    result = subprocess.run(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            **options)
    assert result.returncode == 0, (f"{shlex.join(map(str, command))} ended with "
                                    f"{result.returncode}:\n{result.stdout}")
    return result.stdout


def build(sources: pathlib.Path, folder: str, compiler: str, definitions: list[str],
          to: pathlib.Path) -> pathlib.Path:
    settings = [f"build-dir={folder}", f"cmake.define.CMAKE_CXX_COMPILER={compiler}"]
    settings += [f"cmake.define.{definition.removeprefix('-D')}" for definition in definitions]
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-build-isolation", "--no-index",
        "--no-deps", f"--wheel-dir={to}", *[f"--config-settings={setting}" for setting in settings],
        sources)
    [wheel] = to.glob("*.whl")
    return wheel


def check_contents(wheel: pathlib.Path, sources: pathlib.Path) -> str:
    """Returns the version."""
    version = re.search(r"project\(ddprun VERSION ([\d.]+)",
                        (sources / "CMakeLists.txt").read_text())[1]
    platform_tag = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    assert wheel.name == f"ddprun-{version}-py3-none-{platform_tag}.whl", wheel.name
    package = f"ddprun-{version}"
    expected = {f"{package}.data/scripts/{name}" for name in PROGRAMS}
    expected |= {f"{package}.data/data/share/{name}" for name in DATA}
    expected |= {str(file.relative_to(sources / "python"))
                 for file in (sources / "python/ddprun").rglob("*")
                 if file.suffix == ".py" or file.name == "py.typed"}
    expected.add("ddprun/libddprun_cpu.so")  # of the backend for torch.distributed
    expected |= {f"{package}.dist-info/{name}"
                 for name in ("METADATA", "WHEEL", "RECORD")}
    expected |= {f"{package}.dist-info/licenses/{file}" for file in LICENSES}
    with zipfile.ZipFile(wheel) as archive:
        assert set(archive.namelist()) == expected, set(archive.namelist()) ^ expected
        for file in LICENSES:
            text = archive.read(f"{package}.dist-info/licenses/{file}")
            assert text == (sources / file).read_bytes(), file
    return version


def libraries_of(files: list) -> dict[str, str]:
    """Returns the libraries that the dynamic linker loads for the files, by name; an empty
    path: no file."""
    # With several files, ldd fails if one is static.
    listing = subprocess.run(["ldd", *files], text=True, capture_output=True, check=False).stdout
    assert "not found" not in listing, listing
    found = {}
    for line in listing.splitlines():
        if match := re.fullmatch(r"\s+(\S+?)(?: => (\S+))?(?: \(0x\w+\))", line):
            found[pathlib.PurePath(match[1]).name] = (
                match[2] or (match[1] if match[1].startswith("/") else ""))
    return found


def check_libraries(installed: pathlib.Path) -> None:
    for name in sorted(PROGRAMS):
        libraries = libraries_of([installed / name])
        assert "libc.so.6" in libraries, libraries
        strange = [library for library in libraries if not ALLOWED.fullmatch(library)]
        assert not strange, f"{name} is linked with {strange}"
        print(f"{name}: {' '.join(sorted(libraries))}")


def small_root(environment: pathlib.Path) -> list[str]:
    """Returns the contents of the root, at the same paths as here.

    These are devices, this Python, and every library that any of it loads."""
    standard = pathlib.Path(sysconfig.get_path("stdlib"))
    python = pathlib.Path(sys.executable).resolve()
    loaded = [python, *standard.glob("lib-dynload/*.so"),
              *(environment / "bin" / name for name in PROGRAMS)]
    libraries = [path for path in libraries_of(loaded).values() if path]
    here = pathlib.Path(__file__).parent
    return [*map(str, (environment, standard, python, here / "wheel_probe.py")), *libraries, "/dev",
            *(file for file in ("/etc/hosts", "/etc/nsswitch.conf") if os.path.exists(file))]


# $1: an empty folder. $2: the number of paths that follow, which are bound below it. Then a
# command to run there.
MAKE_ROOT = """
set -e
root=$1 places=$2
shift 2
mount -t tmpfs none "$root"
while [ "$places" -gt 0 ]; do
  if [ -d "$1" ]; then mkdir -p "$root$1"; else mkdir -p "$root$(dirname "$1")"; touch "$root$1"; fi
  mount --rbind "$1" "$root$1"
  shift
  places=$((places - 1))
done
mkdir -p "$root/proc" "$root/tmp"
mount -t proc none "$root/proc"
exec chroot "$root" "$@"
"""


def ask_auditwheel() -> None:
    """The wheel is accepted as manylinux with the libraries that it has."""
    needs.module("scikit_build_core", ": scripts/setup --tests")
    sources, folder, compiler, *definitions = sys.argv[2:]
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(temporary)
        wheel = build(pathlib.Path(sources), folder, compiler, definitions, work)
        python = work / "venv/bin/python"
        venv.create(work / "venv", with_pip=True)
        run(python, "-m", "pip", "install", "--quiet", "auditwheel")
        said = " ".join(run(python, "-m", "auditwheel", "show", wheel).split())
        print(said)
        assert re.search(r'platform tag: "manylinux_2_\d+_\w+"', said), said
        libraries = re.search(r"system-provided shared libraries:(.*?)This constrains", said)[1]
        assert set(re.findall(r"\S+\.so\S*", libraries)) <= {"libc.so.6", "libm.so.6"}, libraries


def main() -> None:
    needs.module("scikit_build_core", ": scripts/setup --tests")
    sources, folder, compiler, *definitions = sys.argv[1:]
    # No part of it outlives the test, even if the test is killed.
    unshare = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child"]
    if os.geteuid() != 0:
        unshare.append("--map-root-user")
    if subprocess.run([*unshare, "mount", "-t", "tmpfs", "none", "/tmp"],
                      check=False).returncode != 0:
        needs.skip("a root of our own needs root, or user namespaces")
    with tempfile.TemporaryDirectory() as temporary:
        work = pathlib.Path(temporary)
        wheel = build(pathlib.Path(sources), folder, compiler, definitions, work)
        version = check_contents(wheel, pathlib.Path(sources))

        environment = work / "venv"
        venv.create(environment, with_pip=True)
        python = environment / "bin/python"
        run(python, "-m", "pip", "install", "--quiet", "--no-index", wheel)
        check_libraries(environment / "bin")
        run(python, "-c", "from ddprun import _engine")  # loads its library
        hardening_test = pathlib.Path(__file__).parent / "hardening_test.py"
        run(sys.executable, hardening_test,
            *(environment / "bin" / name for name in sorted(PROGRAMS)))
        # The wheel is installed once more, in the place where its programs are to run.
        places = small_root(environment)
        run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "ddprun")
        assert not any((environment / "bin" / name).exists() for name in PROGRAMS)
        shutil.copy(wheel, environment)
        root = work / "root"
        root.mkdir()
        print(run(*unshare, "sh", "-c", MAKE_ROOT, "sh", root, str(len(places)), *places, python,
                  pathlib.Path(__file__).parent / "wheel_probe.py", environment / wheel.name,
                  version, env={"PATH": f"{environment}/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                                "LANG": "C.UTF-8"}, timeout=900))


PYTORCHS = ["2.1.2", "2.2.2", "2.6.0", "2.11.0", "2.14.1"]  # all have wheels for Python 3.11


def try_with_pytorch(python: pathlib.Path, version: str) -> None:
    """version: of PyTorch, which is installed; empty: it is not."""
    program = pathlib.Path(__file__).parent / "wheel_pytorch.py"
    env = {"PATH": f"{python.parent}:/usr/bin:/bin", "PYTHONPATH": str(program.parent),
           "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
    said = run(python, program, "launch", env=env, timeout=300)
    # Before it, ddprun may say what it has removed of jobs that were killed.
    assert said.endswith("[(0, 0), (1, 0)]\n"), said
    backend = ""
    if version:
        done = subprocess.run([python.parent / "ddprun", "--nproc-per-node=2", program, "backend"],
                              env=env | {"PYTHON_EXEC": str(python)}, text=True, timeout=300,
                              capture_output=True, check=False)
        works = [part for part in ("collectives", "DistributedDataParallel")
                 if done.stdout.count(part) == 2]
        backend = f"; backend: {', '.join(works)}"
        assert done.returncode == 0 and len(works) == 2, done.stdout + done.stderr
    print(f"torch {version or 'not installed'}: import, report_progress, launch{backend}",
          flush=True)


def try_all_pytorchs() -> None:
    needs.module("scikit_build_core", ": scripts/setup --tests")
    sources, folder, compiler, *definitions = sys.argv[2:]
    with tempfile.TemporaryDirectory() as temporary:
        wheel = build(pathlib.Path(sources), folder, compiler, definitions, pathlib.Path(temporary))
        for version in ["", *PYTORCHS]:
            with tempfile.TemporaryDirectory(dir=folder) as environment:
                venv.create(environment, with_pip=True)
                python = pathlib.Path(environment) / "bin/python"
                packages = [f"torch=={version}", "numpy<2"] if version else []
                run(python, "-m", "pip", "install", "--quiet", "--no-cache-dir", wheel, *packages)
                try_with_pytorch(python, version)


if sys.argv[1] == "--auditwheel":
    ask_auditwheel()
elif sys.argv[1] == "--pytorch":
    try_all_pytorchs()
else:
    main()
