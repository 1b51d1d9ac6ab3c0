"""Tests programs in Python under ddprun, as their users know them from torchrun.

argv[1]: the folder of the programs. The processes of each story have a mark in their
environment. None may be left when the story ends.
"""
import os
import pathlib
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import time
import uuid
import venv

sys.path.append(f"{sys.path[0]}/../../support")
import needs  # noqa: E402

PATIENCE = 240.0  # seconds for one job, on a busy machine
NO_LIBUV = "use_libuv was requested but PyTorch was built without libuv support"


class Job:
    """Runs ddprun with these arguments in its folder.

    python is the one that runs this test, unless the environment sets another one."""

    def __init__(self, folder: pathlib.Path, words: list, env: dict | None = None,
                 program: pathlib.Path | None = None):
        self.mark = f"DDPRUN_TEST_MARK={uuid.uuid4()}"
        name, value = self.mark.split("=")
        variables = {k: v for k, v in os.environ.items()
                     if not k.startswith(("TORCHELASTIC_", "PET_"))}
        variables |= {"PYTHON_EXEC": sys.executable, "PYTHONWARNINGS": "ignore", name: value}
        variables |= env or {}
        self.output = ""
        self.process = subprocess.Popen([program or DDPRUN, *map(str, words)], cwd=folder,
                                        text=True, bufsize=1,
                                        env={k: v for k, v in variables.items() if v is not None},
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                        start_new_session=True)

    def read_until(self, pattern: str, times: int = 1) -> None:
        """Reads until this number of lines match. Lines come whole, so it never reads beyond
        the end."""
        deadline = time.monotonic() + PATIENCE
        while len(re.findall(pattern, self.output, re.MULTILINE)) < times:
            ready = select.select([self.process.stdout], [], [],
                                  max(0, deadline - time.monotonic()))[0]
            assert ready, f"no '{pattern}' in:\n{self.output}"
            more = os.read(self.process.stdout.fileno(), 1 << 16).decode(errors="replace")
            assert more, f"it ended without '{pattern}':\n{self.output}"
            self.output += more

    def end(self, code: int) -> str:
        """Waits for the end. Returns all output. The exit code must be this one, and no
        process may be left."""
        try:
            rest, _ = self.process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self.output += rest
        assert self.process.returncode == code, (
            f"exit code {self.process.returncode}:\n{self.output}")
        left = self.processes()
        assert not left, f"left behind: {left}\n{self.output}"
        return self.output

    def processes(self) -> list[str]:
        found = []
        for entry in pathlib.Path("/proc").iterdir():
            try:
                if (entry.name.isdigit()
                    and self.mark in (entry / "environ").read_text(errors="replace").split("\0")):
                    found.append(f"{entry.name} {(entry / 'cmdline').read_text()!r}")
            except OSError:
                continue  # the process has ended meanwhile
        return found


def write(folder: pathlib.Path, name: str, text: str) -> pathlib.Path:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(textwrap.dedent(text))
    return file


# --- how a program is started ---------------------------------------------------------------------


def a_module_is_run_as_python_runs_it(folder: pathlib.Path) -> None:
    write(folder, "package/train.py", """
        import sys
        print(__name__, __package__, sys.path[0], sys.argv[1:], sys.stdout.write_through)
    """)
    said = Job(folder, ["-m", "package.train", "--lr", "3"]).end(0)
    assert said == f"__main__ package {folder} ['--lr', '3'] True\n", said


def output_is_not_buffered(folder: pathlib.Path) -> None:
    """A print without a flush appears while the program runs, as with torchrun's python -u."""
    script = write(folder, "train.py", """
        import os, sys
        print("half done", os.environ.get("PYTHONUNBUFFERED"), file=sys.stdout)
        open("go").read()
    """)
    os.mkfifo(folder / "go")
    job = Job(folder, [script], env={"PYTHONUNBUFFERED": None})
    job.read_until("^half done None$")
    (folder / "go").write_text("")
    job.end(0)


def the_python_is_the_one_that_torchrun_would_take(folder: pathlib.Path) -> None:
    """The order is PYTHON_EXEC, the environment in which this ddprun is installed, PATH."""
    installed, active = folder / "installed", folder / "active"
    for environment in (installed, active):
        venv.create(environment)
    shutil.copy2(DDPRUN, installed / "bin/ddprun")
    os.symlink(installed / "bin/ddprun", folder / "ddprun")  # as pipx and uv do
    script = write(folder, "train.py", "import sys; print(sys.prefix)")
    path = f"{active}/bin:/usr/bin:/bin"
    for program, env, expected in [
        (DDPRUN, {"PATH": path}, active),
        (DDPRUN, {"PATH": path, "VIRTUAL_ENV": str(installed)}, active),
        (installed / "bin/ddprun", {"PATH": path}, installed),
        (folder / "ddprun", {"PATH": path}, active),
        (installed / "bin/ddprun", {"PATH": path, "PYTHON_EXEC": str(active / "bin/python")},
         active)]:
        said = Job(folder, [script], {"PYTHON_EXEC": None} | env, program).end(0)
        assert said == f"{expected}\n", (program, env, said)


def torchrun_below_ddprun_is_explained(folder: pathlib.Path) -> None:
    for words in (["torchrun"], ["-m", "torch.distributed.run"],
                  [sys.executable, "-u", "-m", "torch.distributed.run"]):
        said = Job(folder, ["--nproc-per-node=8", *words, "--nproc-per-node=2", "train.py"]).end(2)
        assert said.count("\n") == 1 and "type: ddprun --nproc-per-node=2 train.py (" in said, said


def ddprun_below_torchrun_says_so(folder: pathlib.Path) -> None:
    outer = {"TORCHELASTIC_RUN_ID": "outer7", "RANK": "3", "WORLD_SIZE": "4"}
    said = Job(folder, ["sh", "-c", "echo rank $RANK of $WORLD_SIZE"], outer).end(0)
    assert "warning: this ddprun runs in a worker of job 'outer7' (rank 3)" in said, said
    assert "\nrank 0 of 1\n" in said, said


# --- Ctrl-C ---------------------------------------------------------------------------------------


def ctrl_c_shows_one_traceback(folder: pathlib.Path) -> None:
    script = write(folder, "train.py", """
        import os, sys, time
        def step():
            print("running", flush=True); time.sleep(600)
        def load():
            print("running", flush=True); time.sleep(600)
        load() if os.environ["RANK"] == "5" else step()
    """)
    job = Job(folder, ["--nproc-per-node=8", "-t", "2", "--log-dir=logs", script])
    job.read_until("running$", times=8)
    os.killpg(job.process.pid, signal.SIGINT)  # as a terminal does
    said = job.end(130)
    assert said.count("Traceback (most recent call last):") == 1, said
    assert len(re.findall("KeyboardInterrupt$", said, re.MULTILINE)) == 1, said
    others = re.findall(r"KeyboardInterrupt also in rank ([\d, -]+) at .*train.py:\d+, in (\w+)",
                        said)
    assert 1 <= len(others) <= 2, said
    logs = [file.read_text() for file in folder.glob("logs/*/attempt_0/*/stderr.log")]
    assert len(logs) == 8 and all(log.endswith("KeyboardInterrupt\n") for log in logs), logs


# --- programs with processes of their own ---------------------------------------------------------

SPAWNS = """
    import os, signal, sys, time
    import torch.multiprocessing as mp
    def child(index, how):
        # In one piece: print() would write several, and the processes share a pipe.
        sys.stdout.write(f"child {index}\\n")
        if how != "join":
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            os.setsid()
            time.sleep(600)
    if __name__ == "__main__":
        context = mp.start_processes(child, args=(sys.argv[1],), nprocs=2,
                                     join=sys.argv[1] == "join",
                                     start_method="spawn" if sys.argv[1] == "join" else "fork")
        sys.stdout.write(f"spawned {os.getpid()}\\n")  # as above
        if sys.argv[1] != "join":
            context.join()
"""

LOADS = """
    import os, sys, time
    import torch
    from torch.utils.data import DataLoader, Dataset
    class Numbers(Dataset):
        def __len__(self):
            return 64
        def __getitem__(self, index):
            if sys.argv[1] == "wait" and index >= 12:
                time.sleep(1000)  # so that every rank is interrupted in the same place
            return torch.tensor(float(index))
    if __name__ == "__main__":
        total = 0
        for number, batch in enumerate(DataLoader(Numbers(), batch_size=4, num_workers=2)):
            total += int(batch.sum())
            if number == 2:
                print("third batch", flush=True)
            if number == 3 and sys.argv[1] == "fail":
                raise ValueError("batch 3")
        print("sum", total, flush=True)
"""


def children_of_torch_multiprocessing(folder: pathlib.Path) -> None:
    script = write(folder, "spawns.py", SPAWNS)
    said = Job(folder, [script, "join"]).end(0)
    assert len(re.findall("^child [01]$", said, re.MULTILINE)) == 2, said
    # A killed worker leaves children that have left its session and ignore SIGTERM.
    job = Job(folder, ["--nproc-per-node=2", "--shutdown-grace=1", script, "stay"])
    job.read_until("child [01]$", times=4)
    job.read_until(r"\[rank 1\] spawned \d+$")
    os.kill(int(re.search(r"\[rank 1\] spawned (\d+)$", job.output, re.MULTILINE)[1]),
            signal.SIGKILL)
    job.end(137)


def data_loaders_with_workers(folder: pathlib.Path) -> None:
    script = write(folder, "loads.py", LOADS)
    said = Job(folder, ["--nproc-per-node=2", script, "all"]).end(0)
    assert said.count(f"sum {63 * 64 // 2}\n") == 2, said
    said = Job(folder, ["--nproc-per-node=2", script, "fail"]).end(1)
    assert "ValueError: batch 3" in said, said
    job = Job(folder, ["--nproc-per-node=2", script, "wait"])
    job.read_until("third batch$", times=2)
    os.killpg(job.process.pid, signal.SIGINT)
    said = job.end(130)
    assert len(re.findall("^.*KeyboardInterrupt:? ?$", said, re.MULTILINE)) == 1, said


# --- a PyTorch without libuv ----------------------------------------------------------------------

# Only its store shows that this PyTorch has no libuv. Its clients ask for libuv, too, unless
# they are told not to. With an agent's store PyTorch does not tell them.
MEETS = f"""
    import os, signal, sys
    import torch, torch.distributed as dist
    Real = dist.TCPStore
    def without_libuv(*args, use_libuv=True, **more):
        if use_libuv:
            raise RuntimeError("{NO_LIBUV}, run with USE_LIBUV=0 to disable it.")
        return Real(*args, use_libuv=False, **more)
    # dist.rendezvous is a function.
    sys.modules["torch.distributed.rendezvous"].TCPStore = without_libuv
    dist.init_process_group("gloo")
    sum = torch.ones(1)
    dist.all_reduce(sum)
    print("sum", int(sum), os.environ["TORCHELASTIC_USE_AGENT_STORE"], flush=True)
    if os.environ["TORCHELASTIC_RESTART_COUNT"] + os.environ["RANK"] == sys.argv[1]:
        os.kill(os.getpid(), signal.SIGKILL)
    dist.destroy_process_group()
"""


def the_store_of_rank_0_needs_no_libuv(folder: pathlib.Path) -> None:
    script = write(folder, "meets.py", MEETS)
    said = Job(folder, ["--nproc-per-node=2", script, "never"], {"USE_LIBUV": "0"}).end(1)
    assert NO_LIBUV in said, said
    # Rank 0 is killed once. Its successor serves on another port.
    command = ["--nproc-per-node=2", "--max-restarts=1", "--worker-store=rank0", script, "00"]
    said = Job(folder, command, {"USE_LIBUV": "0"}).end(0)
    assert said.count("sum 2 False\n") >= 3 and "after 1 of 1 restarts" in said, said
    # torchrun's own name for the option.
    told = {"USE_LIBUV": "0", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    said = Job(folder, ["--nproc-per-node=2", script, "never"], told).end(0)
    assert said.count("sum 2 False\n") == 2, said


STORIES = [
    a_module_is_run_as_python_runs_it,
    output_is_not_buffered,
    the_python_is_the_one_that_torchrun_would_take,
    torchrun_below_ddprun_is_explained,
    ddprun_below_torchrun_says_so,
    ctrl_c_shows_one_traceback,
    children_of_torch_multiprocessing,
    data_loaders_with_workers,
    the_store_of_rank_0_needs_no_libuv,
]

DDPRUN = pathlib.Path(sys.argv[1]).resolve() / "ddprun"


def main() -> None:
    needs.module("torch")
    for story in STORIES:
        if sys.argv[2:] and story.__name__ not in sys.argv[2:]:
            continue
        with tempfile.TemporaryDirectory() as folder:
            start = time.monotonic()
            story(pathlib.Path(folder).resolve())
            print(f"{story.__name__.replace('_', ' ')}: {time.monotonic() - start:.1f} s",
                  flush=True)


main()
