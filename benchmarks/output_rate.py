#!/usr/bin/env python3
"""Measures the rate of workers' output through ddprun: 8 workers, lines of 100 bytes, into a pipe.

    benchmarks/output_rate.py [--bin build/release/bin] [--rounds 5] [--workers 8]
        [--megabytes 128] [OPTION ...]

Each worker is a cat of one file in the page cache. ddprun's standard output is a pipe that this
script reads. In each round ddprun takes turns with the floor: the same bytes through one cat
into the same reader. Medians are printed. Further options go to ddprun (-t 3 --log-dir ..., -r
1, --pty).

    GB/s      bytes that workers wrote, divided by the time from the first byte read to the last
    agent     processor time of ddprun's agent (all its threads), divided by the same time: 1.00
              is one core
    s/GB      processor time of the agent for each GB: the cost on a machine that has other work,
              too

The following was tried. Figures are processor time for each GB of 100-byte lines. The first two
are the agent's own, on 2 cores of an AMD EPYC with other work (load 20). The others are of a
program that only writes lines with a prefix into a pipe.

    0.80   as it was: two searches for an end in each line; lines were built in one string and
           copied into another
    0.76   one search for \\r in each read and one for \\n in each line; each line is copied
           once, after its prefix, into the buffer that is written
    0.59   also 256 KiB in a worker's pipe and in a read, and 1 MiB in the pipe of our own
           output: fewer wake-ups
    0.24   the writing alone, with the copy: memchr and memcpy 0.11, write 0.13
    0.80   the writing alone without a copy, by writev of prefixes and lines: an entry costs more
           than its 100 bytes
    0.26   the writing alone with the copy, into a pipe of 64 KiB
    -      vmsplice and splice copy nothing, but were not used: they do not put prefixes between
           lines, and bytes in a pipe could still change after a reader has passed them on
"""
import argparse
import os
import pathlib
import statistics
import subprocess
import tempfile
import time

LINE = 100


def children(pid: int) -> list:
    return [int(child)
            for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def agent_of(guardian: int) -> int:
    """Returns the pid of the agent: the guardian's child is the keeper, and its child the agent."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for keeper in children(guardian):
            for agent in children(keeper):
                return agent
    raise RuntimeError("no agent was started")


def processor_time(pid: int) -> float:
    tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def read_bytes(descriptor: int, count: int) -> float:
    """Reads `count` bytes. Returns the seconds from the first byte to the last."""
    buffer = bytearray(1 << 20)
    left = count - os.readv(descriptor, [buffer])
    start = time.monotonic()
    while left > 0:
        size = os.readv(descriptor, [buffer])
        if size == 0:
            raise RuntimeError(f"{left} bytes are missing")
        left -= size
    return time.monotonic() - start


def measure_ddprun(binary: pathlib.Path, more: list, workers: int, source: pathlib.Path,
                   end: pathlib.Path) -> tuple:
    size = source.stat().st_size
    shown = (0 if "-r" in more else size
             + size // LINE * (len("[rank 0] ") if workers > 1 and "-t" not in more else 0))
    if "-t" in more:
        shown = size + size // LINE * len("[default0]:")
    if "--pty" in more:
        shown += size // LINE
    command = [binary / "ddprun", f"--nproc-per-node={workers}", *more, "sh", "-c",
               f"cat {source}; until [ -e {end} ]; do sleep 0.05; done"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as job:
        agent = agent_of(job.pid)
        before = processor_time(agent)
        seconds = read_bytes(job.stdout.fileno(), workers * shown)
        used = processor_time(agent) - before
        end.touch()  # lets the workers end, now that the agent has been measured
        job.stdout.read()
    end.unlink()
    return workers * size / seconds / 1e9, used / seconds, used / (workers * size / 1e9)


def measure_cat(workers: int, source: pathlib.Path) -> float:
    with subprocess.Popen(["cat"] + [source] * workers, stdout=subprocess.PIPE) as job:
        size = workers * source.stat().st_size
        return size / read_bytes(job.stdout.fileno(), size) / 1e9


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    root = pathlib.Path(__file__).resolve().parent.parent
    parser.add_argument("--bin", default=root / "build/release/bin", type=pathlib.Path)
    parser.add_argument("--rounds", default=5, type=int)
    parser.add_argument("--workers", default=8, type=int)
    parser.add_argument("--megabytes", default=128, type=int)
    options, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory() as directory:
        source, end = pathlib.Path(directory) / "lines", pathlib.Path(directory) / "end"
        source.write_bytes((b"x" * (LINE - 1) + b"\n") * (options.megabytes * 1_000_000 // LINE))
        ours, floor = [], []
        for _ in range(options.rounds):
            floor.append(measure_cat(options.workers, source))
            ours.append(measure_ddprun(options.bin, more, options.workers, source, end))
    rate, cores, cost = (statistics.median(column) for column in zip(*ours))
    print(f"{options.workers} workers, {options.megabytes} MB each, medians of {options.rounds} "
          f"rounds; load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    print(f"{'':10}{'GB/s':>8}{'agent':>8}{'s/GB':>8}")
    print(f"{'ddprun':10}{rate:8.2f}{cores:8.2f}{cost:8.2f}")
    print(f"{'cat':10}{statistics.median(floor):8.2f}")


if __name__ == "__main__":
    main()
