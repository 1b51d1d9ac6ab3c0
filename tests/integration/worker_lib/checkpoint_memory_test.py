"""Tests that a training saves, is killed, and restores within a memory cgroup of its tensors and
512 MiB, and ends with the same bits.

Needs root, and the memory controller of cgroup v1 or v2. Otherwise it is skipped.

argv: the folder of the programs, then MIB:RANKS pairs: the size of the state, and of the world.
"""
import pathlib
import subprocess
import sys
import tempfile
import uuid

sys.path.append(f"{sys.path[0]}/../../support")
import needs  # noqa: E402

MORE_MIB = 512
STEPS = 4
CGROUPS = pathlib.Path("/sys/fs/cgroup")


class MemoryCgroup:
    """A cgroup for the processes of one job."""

    def __init__(self, mib: int):
        name = f"ddprun-test-{uuid.uuid4().hex[:8]}"
        try:
            if (CGROUPS / "memory").is_dir():
                self.path, limit = CGROUPS / "memory" / name, "memory.limit_in_bytes"
                self.path.mkdir()
            else:
                (CGROUPS / "cgroup.subtree_control").write_text("+memory")
                self.path, limit = CGROUPS / name, "memory.max"
                self.path.mkdir()
            (self.path / limit).write_text(str(mib << 20))
        except OSError as error:
            needs.skip(f"no memory cgroup can be made: {error}")

    def enter(self) -> None:
        (self.path / "cgroup.procs").write_text("0")

    def remove(self) -> None:
        self.path.rmdir()


def last_word_of(text: str, begin: str) -> str:
    lines = [line for line in text.splitlines() if begin in line]
    return lines[-1].split()[-1] if lines else ""


def run(command: list, ranks: int, mib: int, directory: str = "") -> str:
    """Runs the training, within its bound if it saves. Returns the digest."""
    cgroup = MemoryCgroup(ranks * mib + MORE_MIB) if directory else None
    try:
        job = subprocess.run(
            [command[0], "--standalone", f"--nproc-per-node={ranks}", "--max-restarts=1",
             "--no-python", *command[1:], str(mib), str(STEPS),
             *([directory] if directory else [])],
            capture_output=True, text=True, timeout=3000, check=False,
            preexec_fn=cgroup.enter if cgroup else None)
    finally:
        if cgroup:
            cgroup.remove()
    assert job.returncode == 0, job.stdout + job.stderr
    if directory:
        assert last_word_of(job.stdout, "resumed at step") == "2", job.stdout + job.stderr
    return last_word_of(job.stdout, "digest ")


def main() -> None:
    programs = pathlib.Path(sys.argv[1])
    command = [str(programs / "ddprun"), str(programs / "worker_probe"), "checkpoint_memory"]
    for pair in sys.argv[2:]:
        mib, ranks = map(int, pair.split(":"))
        with tempfile.TemporaryDirectory(prefix="ddprun-checkpoint-memory-") as directory:
            killed = run(command, ranks, mib, directory)
        undisturbed = run(command, 1, mib)
        assert killed == undisturbed != "", f"{pair}: other bits"
        print(f"{mib} MiB, {ranks} ranks: same bits within {ranks * mib + MORE_MIB} MiB")


main()
