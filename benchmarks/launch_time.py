#!/usr/bin/env python3
"""Measures how long a job takes to start, and to start again after a kill: ddprun against torchrun.

    ninja -C build/release benchmarks
    benchmarks/launch_time.py [--bin build/release/bin] [--rounds 7] [--workers 2]

Run it with a python that has torch. The rounds alternate between the launchers and the floor;
medians are printed, and R, torchrun's time over ours.

    true           the launcher runs /bin/true; floor: as many /bin/true, started by this script
    first          from the launch to the end of the first all-reduce of a C++ program on every
                   rank; floor: the same program without a launcher as a world of one, that is
                   the time to load LibTorch
    restart        from the SIGKILL of a rank to the end of the first all-reduce after the
                   restart; same floor

The program prints the time of the first all-reduce (CLOCK_BOOTTIME).
"""
import argparse
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys
import time

SAID = re.compile(r"rank (\d+) pid (\d+) generation (\d+) first all-reduce at (\d+)")


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Job:
    """A run of first_all_reduce under a launcher."""

    def __init__(self, command: list) -> None:
        self.start = now()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                                        text=True)

    def first_all_reduce(self, workers: int) -> tuple[float, int]:
        """Returns when the last rank had finished its all-reduce, and the pid of rank 0."""
        last, pid = 0.0, 0
        for _ in range(workers):
            while not (said := SAID.search(line := self.process.stdout.readline())):
                if not line:
                    raise RuntimeError(f"{self.process.args} ended without a word")
            last = max(last, int(said[4]) / 1e9)
            pid = int(said[2]) if said[1] == "0" else pid
        return last, pid

    def end(self) -> None:
        if self.process.wait(timeout=60) != 0:
            raise RuntimeError(f"{self.process.args} ended with {self.process.returncode}")


def run_true(launcher: list, workers: int) -> float:
    start = now()
    if launcher:
        subprocess.run([*launcher, "/bin/true"], check=True, stderr=subprocess.DEVNULL)
    else:
        for process in [subprocess.Popen(["/bin/true"]) for _ in range(workers)]:
            process.wait()
    return now() - start


def run_first(launcher: list, program: pathlib.Path, workers: int) -> float:
    job = Job([*launcher, program])
    last, _ = job.first_all_reduce(workers if launcher else 1)
    job.end()
    return last - job.start


def run_restart(launcher: list, program: pathlib.Path, workers: int) -> float:
    if not launcher:
        return run_first(launcher, program, workers)
    job = Job([*launcher, program, "--stay"])
    _, pid = job.first_all_reduce(workers)
    killed = now()
    os.kill(pid, signal.SIGKILL)
    last, _ = job.first_all_reduce(workers)
    job.end()
    return last - killed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--bin", default=root / "build/release/bin", type=pathlib.Path)
    parser.add_argument("--rounds", default=7, type=int)
    parser.add_argument("--workers", default=2, type=int)
    options = parser.parse_args()
    os.environ["PYTHONWARNINGS"] = "ignore"
    common = [f"--nproc-per-node={options.workers}", "--max-restarts=1"]
    launchers = {
        "ddprun": [options.bin.resolve() / "ddprun", *common],
        "torchrun": [sys.executable, "-m", "torch.distributed.run", *common, "--no-python"],
        "floor": [],
    }
    program = options.bin.resolve() / "first_all_reduce"
    cases = {
        "true": lambda launcher: run_true(launcher, options.workers),
        "first": lambda launcher: run_first(launcher, program, options.workers),
        "restart": lambda launcher: run_restart(launcher, program, options.workers),
    }
    print(f"{options.workers} workers, medians of {options.rounds} rounds, milliseconds")
    print(f"{'':10}{'ddprun':>10}{'torchrun':>10}{'floor':>10}{'R':>8}{'ours/floor':>12}")
    for name, case in cases.items():
        times = {launcher: [] for launcher in launchers}
        for _ in range(options.rounds):
            for launcher, command in launchers.items():
                times[launcher].append(case(command))
        ours, theirs, floor = (statistics.median(times[launcher]) * 1000 for launcher in launchers)
        print(f"{name:10}{ours:10.1f}{theirs:10.1f}{floor:10.1f}"
              f"{theirs / ours:8.1f}{ours / floor:12.2f}", flush=True)


if __name__ == "__main__":
    main()
