"""For collectives.py: systems of ranks that measure on orders, the hosts of the ranks, and rounds.

A system is a set of processes, one for each rank. They wait for orders (round_server.h) without
using their cores. The driver gives one system at a time an order, so their rounds alternate.
"""

import contextlib
import os
import pathlib
import select
import shutil
import signal
import socket
import statistics
import subprocess
import tempfile
import time

PATIENCE = 120  # seconds for the start of a system and for an order


# If the driver is killed, the processes that it started are killed, too.
DIES_WITH_US = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []


class NotHere(Exception):
    """Raised for a system that cannot run on this machine. The message says why."""


class System:
    """The ranks of one system.

    Starts the commands. Together they have `ranks` ranks, which connect to the driver's socket.
    """

    def __init__(self, name: str, ranks: int, commands, folder: pathlib.Path,
                 environment=None) -> None:
        self.name, self.ranks, self.links, self.processes = name, ranks, {}, []
        self.path = str(folder / f"{name}.socket")
        self.log = open(folder / f"{name}.log", "w+", encoding="utf-8")
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(self.path)
            listener.listen(ranks)
            for command in commands(self.path):
                self.processes.append(
                    subprocess.Popen([*DIES_WITH_US, *map(str, command)], stdin=subprocess.DEVNULL,
                                     stdout=self.log, stderr=self.log,
                                     env={**os.environ, **(environment or {})},
                                     start_new_session=True))
            deadline = time.monotonic() + PATIENCE
            while len(self.links) < ranks:
                ready, _, _ = select.select([listener], [], [], 0.1)
                if ready:
                    link = listener.accept()[0]
                    answers = link.makefile("r")
                    self.links[int(answers.readline().split()[1])] = link, answers
                elif time.monotonic() > deadline or any(one.poll() for one in self.processes):
                    self.log.seek(0)
                    why = (self.log.read().strip().splitlines() or ["it did not come"])[-1]
                    self.end()
                    raise NotHere(why)

    def tell(self, lines: list) -> list:
        """Sends an order to each rank. Returns their answers."""
        for rank, line in enumerate(lines):
            self.links[rank][0].sendall((line + "\n").encode())
        answers = []
        for rank in range(self.ranks):
            answer = self.links[rank][1].readline().strip()
            if not answer:
                self.log.seek(0)
                raise RuntimeError(f"rank {rank} of {self.name} ended: {self.log.read()[-2000:]}")
            answers.append(answer)
        return answers

    def repeat(self, call: str, count: int, untimed: int, sizes) -> tuple | None:
        """Makes a call many times.

        Returns microseconds of one call, and processor microseconds of one call and rank; None:
        there is no such call.

        sizes: the same for every rank, or a function of the rank.
        """
        of_rank = sizes if callable(sizes) else lambda rank: sizes
        lines = [" ".join(map(str, [call, count, untimed, *of_rank(rank)]))
                 for rank in range(self.ranks)]
        answers = self.tell(lines)
        if "none" in answers:
            return None
        figures = [tuple(map(float, answer.split())) for answer in answers]
        return max(us
                   for us, _ in figures) / count, statistics.mean(cpu for _, cpu in figures) / count

    def end(self) -> None:
        for link, answers in self.links.values():
            answers.close()
            link.close()
        for process in self.processes:
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        self.log.close()


class Way:
    """What is measured in the rounds: a system, its call, and bytes."""

    def __init__(self, system: System, call: str, sizes, budget_us: float) -> None:
        self.system, self.call, self.sizes, self.budget_us = system, call, sizes, budget_us
        self.count, self.times, self.used = 0, [], []

    def warm_up(self) -> bool:
        """Finds out how many calls a round has. Returns False if there is no such call."""
        count = 2
        for _ in range(2):
            once = self.system.repeat(self.call, count, 1, self.sizes)
            if once is None:
                return False
            count = max(6, min(100_000, int(self.budget_us / max(once[0], 0.02))))
            self.count, count = count, min(count, 1000)
        return True

    def go(self) -> None:
        us, used = self.system.repeat(self.call, self.count, max(2, self.count // 20), self.sizes)
        self.times.append(us)
        self.used.append(used)

    def result(self) -> dict:
        return {"us": round(statistics.median(self.times), 4), "low": round(min(self.times), 4),
                "high": round(max(self.times), 4), "cpu_us": round(statistics.median(self.used), 4)}


def interleave(ways: dict, rounds: int) -> dict:
    """Measures all ways in turns. Returns the results by the name of the way.

    Ways whose system lacks the call are left out.
    """
    here = {name: way for name, way in ways.items() if way.warm_up()}
    for _ in range(rounds):
        for way in here.values():
            way.go()
    return {name: way.result() for name, way in here.items()}


class Hosts:
    """Two hosts in network namespaces, connected by a cable. They end with this process.

    Needs root and iproute2.
    """

    ADDRESSES = ("10.79.1.10", "10.79.1.11")

    def __init__(self) -> None:
        for tool in ("ip", "tc", "unshare", "nsenter", "setpriv"):
            if not shutil.which(tool):
                raise NotHere(f"the program '{tool}' is missing (iproute2, util-linux)")
        if os.geteuid() != 0:
            raise NotHere("it needs root")
        self.folder = tempfile.TemporaryDirectory()
        hosts = pathlib.Path(self.folder.name) / "hosts"
        hosts.write_text("127.0.0.1 localhost\n"
                         + "".join(f"{a} node{i}\n" for i, a in enumerate(self.ADDRESSES)))
        self.holders = []
        for node in range(2):
            script = (f"hostname node{node} && ip link set lo up && mount --bind {hosts} "
                      "/etc/hosts && echo up && exec sleep infinity")
            holder = subprocess.Popen([*DIES_WITH_US, "unshare", "--net", "--uts", "--mount",
                                       "--fork", "--kill-child", "sh", "-c", script],
                                      stdout=subprocess.PIPE, text=True)
            self.holders.append(holder)
            if holder.stdout.readline() != "up\n":
                self.close()
                raise NotHere("namespaces cannot be made here")
        self.pids = [
            int(pathlib.Path(f"/proc/{one.pid}/task/{one.pid}/children").read_text().split()[0])
            for one in self.holders]
        self.run(0, "ip", "link", "add", "eth0", "type", "veth", "peer", "name", "eth0", "netns",
                 str(self.pids[1]))
        for node, address in enumerate(self.ADDRESSES):
            self.run(node, "ip", "addr", "add", address + "/24", "dev", "eth0")
            self.run(node, "ip", "link", "set", "eth0", "up")
            # Every kernel has reno. Some systems set bbr, which paces at random over a cable
            # without delay.
            self.run(node, "sh", "-c", "echo reno > /proc/sys/net/ipv4/tcp_congestion_control")

    def on(self, node: int, *command) -> list:
        """Returns the command that runs `command` on a host."""
        return ["nsenter", "-t", str(self.pids[node]), "-n", "-u", "-m", f"--wd={os.getcwd()}",
                *command]

    def run(self, node: int, *command) -> None:
        subprocess.run(self.on(node, *command), check=True)

    def shape(self, rate: str | None) -> None:
        """Limits the rate at which each host sends; None: no limit."""
        for node in range(2):
            if rate:
                self.run(node, "tc", "qdisc", "replace", "dev", "eth0", "root", "tbf", "rate", rate,
                         "burst", "128k", "latency", "5ms")
            else:
                subprocess.run(self.on(node, "tc", "qdisc", "del", "dev", "eth0", "root"),
                               stderr=subprocess.DEVNULL, check=False)

    def sent(self) -> list:
        """Returns the bytes that each host has sent so far."""
        counts = []
        for pid in self.pids:
            for line in pathlib.Path(f"/proc/{pid}/net/dev").read_text().splitlines():
                if line.strip().startswith("eth0:"):
                    counts.append(int(line.split(":")[1].split()[8]))
        return counts

    def close(self) -> None:
        for holder in self.holders:
            holder.kill()
            holder.wait()
            holder.stdout.close()
        self.folder.cleanup()
