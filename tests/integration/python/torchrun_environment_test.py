"""Checks that a worker's environment is the same under torchrun and under ddprun, mode by
mode.

argv[1]: the folder of the programs. Each mode runs `env` as the workers of both. The names
must be equal. The values must be equal, too, except those that MAY_DIFFER lists, with the
reason. docs/reference/worker_environment.md is the page for people. TORCHELASTIC_RESTART_COUNT is
the same with one node: with several, torchrun counts for each node.
"""
import contextlib
import os
import pathlib
import re
import select
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable

sys.path.append(f"{sys.path[0]}/../../support")
import needs  # noqa: E402

PATIENCE = 60  # seconds for one launcher
# Only ddprun's workers have them.
OURS = "DDPRUN_"
# Both launchers get this environment and the variables of the mode, and nothing of the user's.
CLEAN = {"PATH": os.environ["PATH"], "HOME": "/", "LANG": "C.UTF-8"}


def address(text: str) -> bool:
    return re.fullmatch(r"[\w.:-]+", text) is not None


def port(text: str) -> bool:
    return text.isdigit() and 0 < int(text) < 65536


def place_of_error_file(text: str) -> str | None:
    found = re.search(r"/attempt_\d+/\d+/error\.json$", text)
    return found and found[0]


# Variable: (the part of the value that must exist and be the same, why the rest differs).
MAY_DIFFER: dict[str, tuple[Callable[[str], object], str]] = {
    "MASTER_ADDR": (address, "torchrun says the host's full name, ddprun an address, if none "
                    "is given"),
    "MASTER_PORT": (port, "a free port, if none is given"),
    "TORCHELASTIC_RUN_ID": (lambda text: bool(re.fullmatch("[0-9a-f-]{32,36}", text)),
                            "--standalone makes one up"),
    "TORCHELASTIC_ERROR_FILE": (place_of_error_file,
                                "both make a directory of their own, below --log-dir where given"),
    "OMP_NUM_THREADS": (str.isdigit,
                        "torchrun says 1; ddprun's is in docs/reference/worker_environment.md"),
}
# Variables that ddprun may set if torchrun does not.
MAY_BE_MORE = {"OMP_NUM_THREADS": "torchrun leaves the only worker of a node what its libraries "
                                  "think"}
# These may differ in every mode that does not state otherwise.
USUALLY = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "OMP_NUM_THREADS"}


class Mode:
    """A mode in which both launchers run.

    nodes: arguments of each node's launcher. equal: variables that must not differ here
    although they usually may. differs: variables that may differ although they usually must
    not. attempts: how often the two workers are started."""

    def __init__(self, *nodes: list[str], env: dict[str, str] | None = None,
                 equal: set[str] = frozenset(), differs: set[str] = frozenset(), attempts: int = 1):
        self.nodes, self.env, self.attempts = nodes, env or {}, attempts
        self.may_differ = (USUALLY - equal) | differs


def modes(number: int) -> dict[str, Mode]:
    """Port `number` is free, and one launcher after the other may use it. LOGS stands for a
    directory."""
    standalone = {"TORCHELASTIC_RUN_ID"}
    where = {"MASTER_ADDR", "MASTER_PORT"}
    two = "--nproc-per-node=2"
    static = ["--rdzv-backend=static", "--nnodes=2", two, "--master-addr=127.0.0.1",
              f"--master-port={number}"]
    return {
        "one worker": Mode(["--standalone"], differs=standalone),
        "two workers": Mode(["--standalone", two], differs=standalone),
        "static": Mode([two, f"--master-port={number}"], equal=where),
        "static with an id and a role": Mode(
            [two, f"--master-port={number}", "--rdzv_id=job7", "--role=trainer"], equal=where),
        "c10d": Mode([two, "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{number}",
                      "--rdzv-id=job8"]),
        "two nodes": Mode([*static, "--node-rank=0"], [*static, "--node-rank=1"], equal=where),
        "virtual local ranks": Mode(["--standalone", two, "--virtual-local-rank"],
                                    differs=standalone),
        "virtual local ranks of a list": Mode(["--standalone", two, "--virtual-local-rank"],
                                              env={"CUDA_VISIBLE_DEVICES": "GPU-7,3"},
                                              differs=standalone),
        "redirected": Mode(["--standalone", two, "-r", "3", "--log-dir=LOGS"], differs=standalone),
        "tee'd": Mode(["--standalone", two, "-t", "3", "--log-dir=LOGS"], differs=standalone),
        "no log directory": Mode(["--standalone", two, "--log-dir=/dev/null"], differs=standalone,
                                 equal={"TORCHELASTIC_ERROR_FILE"}),
        "restarted": Mode(["--standalone", two, "--max-restarts=2"], attempts=2,
                          differs=standalone),
        "inherited": Mode(["--standalone", two], differs=standalone, equal={"OMP_NUM_THREADS"},
                          env={"OMP_NUM_THREADS": "3", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "0",
                               "CUDA_VISIBLE_DEVICES": "1", "PYTHONUNBUFFERED": "1"}),
        "a store of rank 0": Mode(["--standalone", two], differs=standalone,
                                  env={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}),
        "options in the environment": Mode([], differs=standalone,
                                           env={"PET_STANDALONE": "1", "PET_NPROC_PER_NODE": "2"}),
    }


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


# Writes the environment into <folder>/<attempt>.<rank>. Rank 0 fails once rank 1 has written,
# too, until the workers have been started often enough.
WORKER = """
env -0 >"$1/$TORCHELASTIC_RESTART_COUNT.$RANK"
test "$TORCHELASTIC_RESTART_COUNT" -ge "$2" && exit 0
if test "$RANK" = 1; then echo written >"$1/fifo"; else read -r _ <"$1/fifo"; exit 1; fi
"""


def start_torchrun(arguments: list[str], env: dict[str, str], log: pathlib.Path) -> int:
    """Forks a process that continues as torchrun: one import of PyTorch is enough for all
    modes."""
    child = os.fork()
    if child != 0:
        return child
    code = 70
    with contextlib.suppress(BaseException):
        with open(log, "w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        os.environ.clear()
        os.environ.update(env)
        try:
            from torch.distributed.run import main as torchrun
            torchrun(arguments)
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stderr.flush()
    os._exit(code)


def start_ddprun(ddprun: pathlib.Path, arguments: list[str], env: dict[str, str],
                 log: pathlib.Path) -> int:
    with open(log, "w") as file:
        return subprocess.Popen([ddprun, *arguments], env=env, stdout=file, stderr=file).pid


def exit_code_of(pid: int) -> int:
    """Waits for the process and returns its exit code. Kills it after the timeout; the code
    then shows it."""
    end = os.pidfd_open(pid)
    if not select.select([end], [], [], PATIENCE)[0]:
        os.kill(pid, signal.SIGKILL)
    os.close(end)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def environments(mode: Mode, start: Callable, folder: pathlib.Path) -> dict[str, dict[str, str]]:
    """Returns the environment of each worker of the mode, by attempt and rank."""
    folder.mkdir()
    os.mkfifo(folder / "fifo")
    logs = str(folder / "logs")
    running = []
    for number, node in enumerate(mode.nodes):
        options = [option.replace("LOGS", logs) for option in node]
        command = [*options, "--no-python", "/bin/sh", "-c", WORKER, "sh", str(folder),
                   str(mode.attempts - 1)]
        log = folder / f"launcher{number}.log"
        running.append((start(command, CLEAN | mode.env, log), log))
    for pid, log in running:
        code = exit_code_of(pid)
        assert code == 0, f"{command} ended with {code}:\n{log.read_text()}"
    found = {}
    for file in folder.glob("*.[0-9]"):
        found[file.name] = dict(entry.split("=", 1) for entry in file.read_text().split("\0")
                                if entry)
    return found


def differences(mode: Mode, theirs: dict[str, str], ours: dict[str, str]) -> list[str]:
    said = []
    for name in sorted(theirs.keys() | ours.keys()):
        if name.startswith(OURS):
            continue
        if name not in theirs and name in mode.may_differ and name in MAY_BE_MORE:
            if not MAY_DIFFER[name][0](ours[name]):
                said.append(f"{name} may be there ({MAY_BE_MORE[name]}), but not as {ours[name]}")
        elif name not in ours or name not in theirs:
            who, value = ("torchrun", theirs[name]) if name in theirs else ("ddprun", ours[name])
            said.append(f"only {who}'s workers have {name}={value}")
        elif name in mode.may_differ:
            essence, why = MAY_DIFFER[name]
            if not essence(theirs[name]) or essence(theirs[name]) != essence(ours[name]):
                said.append(f"{name} may differ ({why}), but not so: {theirs[name]}, {ours[name]}")
        elif theirs[name] != ours[name]:
            said.append(f"{name} is {theirs[name]} under torchrun, {ours[name]} under ddprun")
    return said


def main() -> None:
    needs.module("torch")
    needs.localhost()  # torchrun --standalone connects to it
    import torch.distributed.run  # noqa: F401: so that the forks have it

    ddprun = pathlib.Path(sys.argv[1]) / "ddprun"
    problems = []
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        for number, (name, mode) in enumerate(modes(free_port()).items()):
            theirs = environments(mode, start_torchrun, work / f"torchrun{number}")
            ours = environments(mode, lambda *what: start_ddprun(ddprun, *what),
                                work / f"ddprun{number}")
            assert theirs.keys() == ours.keys() and theirs, (name, theirs.keys(), ours.keys())
            for worker in theirs:
                for said in differences(mode, theirs[worker], ours[worker]):
                    problems.append(f"{name}, worker {worker}: {said}")
            print(f"{name}: {len(theirs)} workers, {len(next(iter(theirs.values())))} variables",
                  flush=True)
    assert not problems, "\n" + "\n".join(problems)


main()
