#!/usr/bin/env python3
"""Measures what open pages cost a service and a job.

    ninja -C build/release benchmarks
    benchmarks/page_cost.py [--bin build/release/bin] [--seconds 20] [--rounds 3]

agents_of_jobs plays 1,000 agents of 50 jobs, with their real link. A page is a connection to the
service's /events that reads all that comes, as a browser does.

    service   CPU time of the service, in percent of a core: without a page, with 1, with 50; agents
              with 1 and with 8 ranks
    job       CPU time of a real agent of 2 workers that report 100 steps a second, in percent of a
              core: without a page and with 1. `added` is what the page adds; it is the share that
              the job loses if its workers need all cores

Each round measures all of it in turn. Medians are printed.
"""
import argparse
import contextlib
import os
import pathlib
import selectors
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time

PATIENCE = 120.0  # seconds
JOBS, NODES = 50, 20
SOURCES = pathlib.Path(__file__).resolve().parents[1]
WORKER = """
import time
import ddprun
step = 0
while True:
    step += 1
    ddprun.report_progress(step)
    time.sleep(0.01)
"""


def cpu_seconds(pids: list[int]) -> float:
    """Returns the CPU time of all threads of the processes so far."""
    tasks = [task for pid in pids for task in pathlib.Path(f"/proc/{pid}/task").iterdir()]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def percent(pids: list[int], seconds: float) -> float:
    """Returns the CPU time of the processes in the next seconds, in percent of a core."""
    begun, before = time.monotonic(), cpu_seconds(pids)
    time.sleep(seconds)
    return 100 * (cpu_seconds(pids) - before) / (time.monotonic() - begun)


def launchers_of(pid: int) -> list[int]:
    """Returns the process and those of its descendants that run the same program."""
    program = os.readlink(f"/proc/{pid}/exe")
    children = pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid] + [one for child in children if os.readlink(f"/proc/{child}/exe") == program
                    for one in launchers_of(int(child))]


class Pages:
    """Open pages, as a context manager. A thread reads what they are sent."""

    def __init__(self, address: str, count: int) -> None:
        self._selector = selectors.DefaultSelector()
        self._sockets = []
        self._is_over = False
        self._failed = None  # why the thread ended early
        self.bytes = 0
        host, _, port = address.rpartition(":")
        for _ in range(count):
            page = socket.create_connection((host, int(port)))
            page.sendall(f"GET /events HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
            if not page.recv(1 << 20).startswith(b"HTTP/1.1 200"):
                raise RuntimeError("the service has refused a page")
            self._selector.register(page, selectors.EVENT_READ)
            self._sockets.append(page)
        self._thread = threading.Thread(target=self._read)

    def _read(self) -> None:
        try:
            while not self._is_over:
                for key, _ in self._selector.select(0.2):
                    data = key.fileobj.recv(1 << 20)
                    if not data:
                        raise RuntimeError("the service has closed a page")
                    self.bytes += len(data)
        except (OSError, RuntimeError) as failed:
            self._failed = failed

    def __enter__(self) -> "Pages":
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._is_over = True
        self._thread.join()
        for page in self._sockets:
            page.close()
        if self._failed:
            raise self._failed


@contextlib.contextmanager
def running(command: list, **options):
    process = subprocess.Popen(command, text=True, **options)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE)


@contextlib.contextmanager
def service_of(binaries: pathlib.Path):
    """A service, and its address."""
    with running([binaries / "ddp-rendezvous", "--listen=127.0.0.1:0"], stdout=subprocess.PIPE,
                 stderr=subprocess.DEVNULL) as service:
        address = service.stdout.readline().split()[-1]
        threading.Thread(target=service.stdout.read, daemon=True).start()
        yield service, address


def cost_of_service(binaries: pathlib.Path, ranks: int, seconds: float) -> dict[str, float]:
    with service_of(binaries) as (service, address), \
            running([binaries / "agents_of_jobs", address, str(JOBS), str(NODES), str(ranks)],
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE) as agents:
        formed = 0
        while formed < JOBS:
            line = agents.stdout.readline()
            if not line:
                raise RuntimeError("the agents ended")
            formed += line.startswith("formed")
        threading.Thread(target=agents.stdout.read, daemon=True).start()
        found = {}
        for count in (0, 1, 50):
            with Pages(address, count) as pages:
                name = f"{ranks} ranks, {count} pages"
                found[name] = percent([service.pid], seconds)
                found[name + ", MB/s"] = pages.bytes / seconds / 1e6
        return found


def cost_of_job(binaries: pathlib.Path, seconds: float) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder, service_of(binaries) as (_, address):
        worker = pathlib.Path(folder) / "worker.py"
        worker.write_text(WORKER)
        with running([binaries / "ddprun", f"--rdzv-endpoint={address}", "--nproc-per-node=2",
                      "--rdzv-id=job", sys.executable, worker], stderr=subprocess.DEVNULL,
                     env=os.environ | {"PYTHONPATH": str(SOURCES / "python")}) as job:
            deadline = time.monotonic() + PATIENCE
            status = [binaries / "ddprun", "status", f"--rdzv-endpoint={address}", "--json", "job"]
            while '"step":' not in subprocess.run(status, capture_output=True, text=True).stdout:
                if time.monotonic() > deadline:
                    raise RuntimeError("the job does not report steps")
                time.sleep(0.1)
            time.sleep(11)  # the service asks the agent for ranks for 10 s after that
            launchers = launchers_of(job.pid)
            without = percent(launchers, seconds)
            with Pages(address, 1):
                found = percent(launchers, seconds)
            return {"job, no page": without, "job, 1 page": found, "added": found - without}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=SOURCES / "build/release/bin")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    rounds = [cost_of_service(options.bin, 1, options.seconds)
              | cost_of_service(options.bin, 8, options.seconds)
              | cost_of_job(options.bin, options.seconds) for _ in range(options.rounds)]
    for what in rounds[0]:
        unit = "" if what.endswith("MB/s") else " %"
        print(f"{what:24} {statistics.median(one[what] for one in rounds):8.3f}{unit}")


main()
