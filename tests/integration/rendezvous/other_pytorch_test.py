"""Tests clients of other versions of PyTorch against ddp-store.

argv[1]: the folder of the programs. argv[2]: a folder for virtual environments of 5 GB, which
are removed at the end.

2.0 and 2.1 speak the dialects L1 and L2. 2.14 is the first version here whose clients have a
barrier. In each environment the stories of store_stories.py run against ddp-store and against
that version's own servers, and process groups form through ddp-store. If pip cannot install a
version, the test is skipped.
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

sys.path.append(f"{sys.path[0]}/../../support")
import needs  # noqa: E402

# Version -> options of ddp-store for its dialect.
VERSIONS = {"2.0.1": [], "2.1.2": ["--legacy-dialect", "l2"], "2.14.1": []}
PYTHONS = ["3.11", "3.10"]  # all versions have wheels for them
HERE = pathlib.Path(__file__).resolve().parent
INSTALL_PATIENCE = 1500  # seconds
PATIENCE = 200


class Skip(Exception):
    pass


def common_python() -> str:
    """Returns a Python into which all versions can be installed."""
    for program in [sys.executable, *(f"python{version}" for version in PYTHONS)]:
        if shutil.which(program):
            asked = subprocess.run([program, "-c",
                                    "import ensurepip, sys; print('%d.%d' % sys.version_info[:2])"],
                                   capture_output=True, text=True, timeout=PATIENCE)
            if asked.returncode == 0 and asked.stdout.strip() in PYTHONS:
                return program
    raise Skip(f"none of Python {', '.join(PYTHONS)} is here, with venv")


def install(version: str, folder: pathlib.Path) -> pathlib.Path:
    """Makes the environment and returns its python."""
    subprocess.run([common_python(), "-m", "venv", folder], check=True, timeout=PATIENCE)
    python = folder / "bin/python3"
    # The old wheels load CUDA's libraries even without a GPU, so all their requirements are
    # installed.
    try:
        done = subprocess.run([python, "-m", "pip", "install", "--quiet",
                               "--disable-pip-version-check", f"torch=={version}", "numpy<2"],
                              capture_output=True, text=True, timeout=INSTALL_PATIENCE)
    except subprocess.TimeoutExpired:
        raise Skip(f"pip has not installed torch {version} within {INSTALL_PATIENCE} s")
    if done.returncode != 0:
        reason = (done.stderr.strip() or "it says nothing").splitlines()[-1]
        raise Skip(f"pip cannot install torch {version}: {reason}")
    return python


def run(*command) -> str:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=PATIENCE)
    print(done.stdout, flush=True)
    assert done.returncode == 0, f"{command}: exit code {done.returncode}"
    return done.stdout


def check(version: str, options: list[str], binaries: str, folder: pathlib.Path) -> None:
    python = install(version, folder)
    print(f"--- torch {version}", flush=True)
    told = run(python, HERE / "store_transcripts.py", binaries, *options)
    assert f"equal for PyTorch {version}" in told, told
    # These tests need no option: a process group uses nothing in which L1 and L2 differ.
    tested = run(python, HERE / "pytorch_groups_test.py", binaries,
                 "ProcessGroups.test_objects",
                 "ProcessGroups.test_a_rank_that_misses_the_barrier_is_named")
    assert "Ran 2 tests" in tested, tested


def main() -> None:
    os.makedirs(sys.argv[2], exist_ok=True)
    skipped = []
    for version, options in VERSIONS.items():
        with tempfile.TemporaryDirectory(dir=sys.argv[2], prefix=f"torch-{version}-") as folder:
            try:
                check(version, options, sys.argv[1], pathlib.Path(folder))
            except Skip as reason:
                skipped.append(str(reason))
    if skipped:
        needs.skip("; ".join(skipped))


main()
