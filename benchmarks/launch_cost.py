#!/usr/bin/env python3
"""Measures the cost of a launcher: ddprun against torchrun and OpenMPI's mpirun.

    ninja -C build/release benchmarks
    benchmarks/launch_cost.py [--bin build/release/bin] [--rounds 15] [--only true,many,...]

It needs no LibTorch. torchrun is compared if this python has torch, mpirun if it is in PATH;
else the table says "not here". Each round runs every launcher and the floor in turn, each once
untimed and then once timed: while one of them takes seconds, some machines drop the pages of the
others' programs from memory. Prints medians, and R, the peer's time over ours.

    true      the whole command, with 2 workers that are /bin/true; floor: two /bin/true, started
              by this script
    many      the same with 64 workers, without torchrun; also what each worker adds for ours
    main      the time until the first line of a Python worker; floor: python started directly
    again     2 workers, from kill -9 of one until both new ones have been executed; floor: the
              shell that is the worker, started directly, until it has printed its line
    told      8 workers, from kill -9 of one until the last of the others has its SIGTERM, p50
              and p99 of 200; floor: this script waits for a process of its own by pidfd and
              signals seven others
    idle      8 workers that sleep: wake-ups of ddprun's processes in 5 s, and their memory
              (resident, and PSS, in which shared memory counts once), compared with torchrun's
"""
import argparse
import importlib.util
import os
import pathlib
import re
import select
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time

# It does not use $$, because torchrun turns that into $.
SAYS_WHEN = "date +'at %s.%N'; read pid rest </proc/self/stat; echo pid $pid; exec sleep 1000"


def timed(command: list) -> float | None:
    """Returns the seconds that the command took; None: it did not end.

    OpenMPI 4.1's mpirun sometimes hangs with 64 processes that end at once.
    """
    start = time.perf_counter()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        # subprocess's own timeouts poll at growing intervals, of up to 50 ms.
        watched = os.pidfd_open(process.pid)
        ended, _, _ = select.select([watched], [], [], 5)
        taken = time.perf_counter() - start
        os.close(watched)
        if not ended:
            process.kill()
            return None
    if process.returncode != 0:
        raise RuntimeError(f"{command} ended with {process.returncode}")
    return taken


def floor_of_true(workers: int) -> float:
    start = time.perf_counter()
    pids = [os.posix_spawn("/bin/true", ["/bin/true"], os.environ) for _ in range(workers)]
    for pid in pids:
        os.waitpid(pid, 0)
    return time.perf_counter() - start


def first_line_of(command: list, script: pathlib.Path) -> float:
    """Returns the time from the launch until the script's first line has run."""
    start = time.time()
    out = subprocess.run([*command, script], check=True, stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, text=True)
    return float(re.search(r"at ([\d.]+)", out.stdout)[1]) - start


def said(stream, count: int) -> tuple[float, list]:
    """Returns when the last of `count` workers has reported its start, and their pids."""
    times, pids = [], []
    while len(times) < count or len(pids) < count:
        line = stream.readline()
        if not line:
            raise RuntimeError("the workers ended without a word")
        if found := re.search(r"at ([\d.]+)", line):
            times.append(float(found[1]))
        if found := re.search(r"pid (\d+)", line):
            pids.append(int(found[1]))
    return max(times), pids


class Running:
    """A launcher in a session of its own. It gets SIGTERM at the end of the block."""

    def __init__(self, command: list, **options) -> None:
        self.process = subprocess.Popen(command, stderr=subprocess.DEVNULL, text=True,
                                        start_new_session=True, **options)

    def __enter__(self):
        return self.process

    def __exit__(self, *_) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=60)


def again(command: list) -> float:
    if not command:
        start = time.time()
        with Running(["sh", "-c", SAYS_WHEN], stdout=subprocess.PIPE) as process:
            return said(process.stdout, 1)[0] - start
    with Running([*command, "sh", "-c", SAYS_WHEN], stdout=subprocess.PIPE) as process:
        _, pids = said(process.stdout, 2)
        killed = time.time()
        os.kill(pids[0], signal.SIGKILL)
        return said(process.stdout, 2)[0] - killed


def told(command: list, worker: pathlib.Path) -> float:
    """Returns the time from kill -9 of one of 8 workers until the last other one is told to end.

    The workers print when they are told.
    """
    if command:
        with Running([*command, worker], stdout=subprocess.PIPE) as process:
            pids = [int(process.stdout.readline().split()[-1]) for _ in range(8)]
            killed = time.time()
            os.kill(pids[0], signal.SIGKILL)
            return max(float(process.stdout.readline().split()[-1]) for _ in range(7)) - killed
    workers = [subprocess.Popen([worker], stdout=subprocess.PIPE, text=True) for _ in range(8)]
    for one in workers:
        one.stdout.readline()
    watched = os.pidfd_open(workers[0].pid)
    killed = time.time()
    workers[0].kill()
    select.select([watched], [], [])
    for one in workers[1:]:
        one.terminate()
    last = max(float(one.stdout.readline().split()[-1]) for one in workers[1:]) - killed
    for one in workers:
        one.wait()
        one.stdout.close()
    os.close(watched)
    return last


def children_of(pid: int) -> list:
    return [int(child) for task in pathlib.Path(f"/proc/{pid}/task").iterdir()
            for child in (task / "children").read_text().split()]


def number_in(path: str, name: str) -> int:
    return int(re.search(rf"^{name}:\s+(\d+)", pathlib.Path(path).read_text(), re.M)[1])


def wake_ups(pids: list) -> int:
    return sum(number_in(f"{task}/status", "voluntary_ctxt_switches")
               for pid in pids for task in pathlib.Path(f"/proc/{pid}/task").iterdir())


def idle(command: list, own_processes) -> tuple[float, float, float]:
    """Returns wake-ups a second and MB (resident, PSS) of a launcher's own processes.

    Its workers do nothing meanwhile.
    """
    with Running([*command, "sleep", "1000"]) as process:
        deadline = time.time() + 60
        while (len(pids := own_processes(process.pid)) == 0) and time.time() < deadline:
            time.sleep(0.05)
        time.sleep(1)  # waits for the rest of the start
        before = wake_ups(pids)
        time.sleep(5)
        memory = [sum(number_in(f"/proc/{pid}/smaps_rollup", name) for pid in pids) / 1024
                  for name in ("Rss", "Pss")]
        return (wake_ups(pids) - before) / 5, *memory


def guards_and_agent(pid: int) -> list:
    """Returns the pids of guardian, keeper and agent, once the agent has 8 workers; [] before."""
    chain = [pid]
    while len(chain) < 3:
        below = children_of(chain[-1])
        if not below:
            return []
        chain.append(below[0])
    return chain if len(children_of(chain[-1])) == 8 else []


def only_itself(pid: int) -> list:
    return [pid] if len(children_of(pid)) == 8 else []


def print_row(name: str, ours: float, peers: dict, floor: float, note: str = "") -> None:
    cells = [f"{name:8}{ours * 1000:10.2f}"]
    for peer in peers.values():
        cells.append(f"{'not here':>10}{'':8}" if peer is None
                     else f"{peer * 1000:10.1f}{peer / ours:8.1f}")
    print("".join(cells) + f"{floor * 1000:10.2f}  {note}", flush=True)


def medians_of(cases: dict, rounds: int) -> dict:
    """Runs the cases in turns. Returns the median of each.

    cases: name to a function, or to None if it is not here.
    """
    times = {name: [] for name, case in cases.items() if case}
    for _ in range(rounds):
        for name in times:
            cases[name]()
            times[name].append(cases[name]())
    found = dict.fromkeys(cases)
    for name, all_times in times.items():
        ended = [one for one in all_times if one is not None]
        found[name] = statistics.median(ended) if ended else None
        if len(ended) < rounds:
            print(f"{name} did not end in {rounds - len(ended)} of {rounds} rounds, which are left "
                  "out")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--bin", default=root / "build/release/bin", type=pathlib.Path)
    parser.add_argument("--rounds", default=15, type=int)
    parser.add_argument("--only", default="true,many,main,again,told,idle")
    options = parser.parse_args()
    os.environ["PYTHONWARNINGS"] = "ignore"
    os.environ["PYTHON_EXEC"] = sys.executable
    ddprun = [options.bin.resolve() / "ddprun", "--standalone"]
    has_torch = importlib.util.find_spec("torch") is not None
    torchrun = ([sys.executable, "-m", "torch.distributed.run", "--standalone"] if has_torch
                else None)
    has_mpi = shutil.which("mpirun") is not None
    mpirun = ["mpirun", "--allow-run-as-root", "--oversubscribe"] if has_mpi else None

    print(f"medians of {options.rounds} rounds, milliseconds; load {os.getloadavg()[0]:.1f}")
    print(f"{'':8}{'ddprun':>10}{'torchrun':>10}{'R':>8}{'mpirun':>10}{'R':>8}{'floor':>10}")

    def run_true(workers: int, peers: bool) -> dict:
        nproc, true = f"--nproc-per-node={workers}", ["--no-python", "/bin/true"]
        return medians_of({
            "ddprun": lambda: timed([*ddprun, nproc, *true]),
            "torchrun": (lambda: timed([*torchrun, nproc, *true])) if torchrun and peers else None,
            "mpirun": (lambda: timed([*mpirun, "-n", str(workers), "/bin/true"])) if mpirun
                      else None,
            "floor": lambda: floor_of_true(workers),
        }, options.rounds)

    def show(name: str, found: dict, note: str = "") -> None:
        print_row(name, found["ddprun"], {peer: found[peer] for peer in ("torchrun", "mpirun")},
                  found["floor"], note)

    wanted = options.only.split(",")
    if "true" in wanted:
        show("true", run_true(2, True))
    if "many" in wanted:
        one, many = run_true(1, False), run_true(64, False)
        each = (many["ddprun"] - one["ddprun"]) / 63 * 1000
        show("many", many, f"each worker adds {each:.2f} ms, to the floor "
             f"{(many['floor'] - one['floor']) / 63 * 1000:.2f}")
    if "main" in wanted:
        with tempfile.TemporaryDirectory() as folder:
            script = pathlib.Path(folder) / "main.py"
            script.write_text("import time; print('at', time.time())\n")
            found = medians_of({
                "ddprun": lambda: first_line_of(ddprun, script),
                "torchrun": (lambda: first_line_of(torchrun, script)) if torchrun else None,
                "mpirun": (lambda: first_line_of([*mpirun, "-n", "1", sys.executable], script))
                          if mpirun else None,
                "floor": lambda: first_line_of([sys.executable, "-u"], script),
            }, options.rounds)
            show("main", found, f"ours adds {(found['ddprun'] - found['floor']) * 1000:.1f} ms")
    if "again" in wanted:
        pair = ["--nproc-per-node=2", "--max-restarts=1", "--no-python"]
        found = medians_of({
            "ddprun": lambda: again([*ddprun, *pair]),
            "torchrun": (lambda: again([*torchrun, *pair])) if torchrun else None,
            "mpirun": None,  # it does not restart
            "floor": lambda: again([]),
        }, options.rounds)
        show("again", found)
    if "told" in wanted:
        eight = ["--nproc-per-node=8", "--no-python"]
        times = {"ddprun": [], "the floor": []}
        for _ in range(200):
            times["ddprun"].append(told([*ddprun, *eight], options.bin.resolve() / "told_to_end"))
            times["the floor"].append(told([], options.bin.resolve() / "told_to_end"))
        for name, found in times.items():
            found.sort()
            print(f"told    {name}: p50 {found[100] * 1000:.2f} ms, p99 {found[197] * 1000:.2f} "
                  f"ms, longest {found[199] * 1000:.2f} ms", flush=True)
    if "idle" in wanted:
        eight = ["--nproc-per-node=8", "--no-python"]
        service = subprocess.Popen([options.bin.resolve() / "ddp-rendezvous",
                                    "--listen=127.0.0.1:0"], text=True, stdout=subprocess.PIPE,
                                   stderr=subprocess.STDOUT)
        endpoint = service.stdout.readline().split()[-1]
        at_service = [options.bin.resolve() / "ddprun", "--nnodes=1", f"--rdzv-endpoint={endpoint}"]
        for name, launcher, processes in (("ddprun", ddprun, guards_and_agent),
                                          ("ddprun --hang-timeout",
                                           [*ddprun, "--hang-timeout=60"], guards_and_agent),
                                          ("ddprun at a service", at_service, guards_and_agent),
                                          ("torchrun", torchrun, only_itself)):
            if launcher is None:
                print(f"idle    {name} is not here")
                continue
            wakes, resident, pss = idle([*launcher, *eight], processes)
            print(f"idle    {name}: {wakes:.1f} wake-ups a second, {resident:.1f} MB resident, PSS "
                  f"{pss:.1f} MB", flush=True)
        service.terminate()
        service.wait()


if __name__ == "__main__":
    main()
