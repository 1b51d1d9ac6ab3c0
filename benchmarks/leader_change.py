#!/usr/bin/env python3
"""Measures how soon agents are served after the loss of a leading service or of etcd's leader.

    ninja -C build/release benchmarks
    DDPRUN_TESTBED=... benchmarks/leader_change.py [--bin build/release/bin] [--rounds 20] [--busy]

Three members of etcd and three ddp-rendezvous run on this host. agents_of_jobs plays the agents,
with their real link. The testbed's etcd-cluster starts etcd. --busy marks the results: other
programs ran.

    killed      SIGKILL of the leader, until the last of 8 agents is served by another one
    frozen      the same after SIGSTOP
    etcd        SIGKILL of etcd's leader at once before a failure is reported, until all agents of
                the job have the next generation. `lost`: agents that would end their workers.
                `etcd has no leader`: until a plain client's write succeeds, in the same rounds
    decision    a failure reported, until all 4 agents of the job have the next generation: with
                etcd and with a directory (--state dir:), in turn. A decision writes twice, one
                after the other. `etcd alone` is two such writes by a plain client
    reconnect   SIGKILL of the leader, until the last of 1,000 agents of 50 jobs is served
"""
import argparse
import base64
import http.client
import json
import math
import os
import pathlib
import queue
import re
import shutil
import signal
import statistics
import subprocess
import tempfile
import threading
import time
import urllib.request

PATIENCE = 60.0


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class Etcd:
    def __init__(self, folder: pathlib.Path) -> None:
        self.command = os.environ["DDPRUN_TESTBED"] + "/etcd-cluster"
        self.environment = {**os.environ, "EC_STATE": str(folder / "etcd")}
        self.call("up", "3")

    def call(self, *command: str) -> str:
        return subprocess.run([self.command, *command], check=True, text=True,
                              env=self.environment, stdout=subprocess.PIPE).stdout.strip()

    def place(self) -> str:
        return "etcd://" + self.call("endpoints").replace("http://", "")


class Writer:
    """Writes to etcd on a connection of its own, as much as a decision of a job of 4 nodes does."""

    def __init__(self, etcd: Etcd) -> None:
        self.connection = http.client.HTTPConnection(etcd.place()[len("etcd://"):].split(",")[0])

    def write_twice(self) -> float:
        """Returns how long both writes took together."""
        put = {"key": base64.b64encode(b"alone").decode(),
               "value": base64.b64encode(b"x" * 1000).decode()}
        begin = now()
        for _ in range(2):
            self.connection.request("POST", "/v3/kv/txn",
                                    json.dumps({"success": [{"requestPut": put}]}))
            reply = self.connection.getresponse()
            text = reply.read()
            if reply.status != 200:
                raise RuntimeError(f"etcd refuses a write: {text}")
        return now() - begin


class Prober:
    """Writes to each member of etcd, to find when etcd has a leader again."""

    TRY_TIME = 0.1

    def __init__(self, etcd: Etcd) -> None:
        self.written = queue.Queue()
        self.is_over = False
        self.threads = [threading.Thread(target=self.probe, args=(at, index)) for index, at in
                        enumerate(etcd.place()[len("etcd://"):].split(","))]
        for thread in self.threads:
            thread.start()

    def probe(self, at: str, index: int) -> None:
        put = json.dumps({"key": base64.b64encode(f"probe{index}".encode()).decode()})
        while not self.is_over:
            connection = http.client.HTTPConnection(at, timeout=self.TRY_TIME)
            try:
                connection.request("POST", "/v3/kv/put", put)
                if connection.getresponse().status == 200:
                    self.written.put(now())
                    return
            except (OSError, http.client.HTTPException):
                time.sleep(0.02)  # a dead member refuses at once
            finally:
                connection.close()

    def first(self) -> float:
        """Returns when the first write has succeeded, and ends."""
        when = self.written.get(timeout=PATIENCE)
        self.is_over = True
        for thread in self.threads:
            thread.join()
        return when


class Service:
    """A ddp-rendezvous that can be killed and started again at its address."""

    def __init__(self, program: pathlib.Path, state: str) -> None:
        self.command = [program, f"--state={state}", "--lease=5"]
        self.address = "127.0.0.1:0"
        self.start()

    def start(self) -> None:
        self.process = subprocess.Popen([*self.command, f"--listen={self.address}"],
                                        stdout=subprocess.PIPE, text=True,
                                        stderr=subprocess.STDOUT)
        while not (said := re.search(r"listening on (\S+:\d+)", line :=
                                     self.process.stdout.readline())):
            if not line:
                raise RuntimeError("the service ended")
        self.address = said[1]
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def kill(self, how: int = signal.SIGKILL) -> None:
        self.process.send_signal(how)
        if how == signal.SIGKILL:
            self.process.wait()

    def leads(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/leader", timeout=0.5) as reply:
                return reply.status == 200
        except OSError:
            return False


class Agents:
    def __init__(self, program: pathlib.Path, services: list, jobs: int, nodes: int) -> None:
        places = ",".join(service.address for service in services)
        self.process = subprocess.Popen([program, places, str(jobs), str(nodes)], text=True,
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.lines = queue.Queue()
        self.lost = 0
        threading.Thread(target=self.read, daemon=True).start()
        self.count = jobs * nodes
        for _ in range(jobs):
            self.next("formed")

    def read(self) -> None:
        for line in self.process.stdout:
            what, who, when = line.split()
            self.lost += what == "lost"
            self.lines.put((what, int(who), int(when) / 1e9))

    def next(self, wanted: str) -> tuple:
        deadline = now() + PATIENCE
        while True:
            what, who, when = self.lines.get(timeout=max(0.01, deadline - now()))
            if what == wanted:
                return who, when

    def all_served_after(self, begin: float) -> float:
        """Returns when the last agent was served by another service."""
        served = {}
        while len(served) < self.count:
            who, when = self.next("served")
            if when > begin:
                served[who] = when
        return max(served.values())

    def decide(self, job: int) -> float:
        """Returns how long it took from a failure to the next generation of the job."""
        self.process.stdin.write(f"fail {job}\n")
        self.process.stdin.flush()
        _, failed = self.next("failed")
        return self.next("formed")[1] - failed

    def close(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def leader_of(services: list) -> Service:
    deadline = now() + PATIENCE
    while now() < deadline:
        for service in services:
            if service.leads():
                return service
        time.sleep(0.02)
    raise RuntimeError("no service leads")


def row(name: str, times: list, unit: float = 1.0, more: str = "") -> None:
    ordered = sorted(times)
    p50, p99 = statistics.median(ordered), ordered[math.ceil(0.99 * len(ordered)) - 1]
    name_of_unit = "s" if unit == 1.0 else "ms"
    print(f"| {name} | {p50 * unit:.2f} {name_of_unit} | {p99 * unit:.2f} {name_of_unit} | "
          f"{ordered[-1] * unit:.2f} {name_of_unit} | {len(times)} |{more}", flush=True)


def changes(agents: Agents, services: list, rounds: int, how: int) -> list:
    times = []
    for _ in range(rounds):
        leader = leader_of(services)
        time.sleep(1.0)  # until the standbys watch it
        begin = now()
        leader.kill(how)
        times.append(agents.all_served_after(begin) - begin)
        if how == signal.SIGSTOP:
            leader.process.send_signal(signal.SIGCONT)
        else:
            leader.start()
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", type=pathlib.Path, default=pathlib.Path("build/release/bin"))
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--busy", action="store_true")
    options = parser.parse_args()
    folder = pathlib.Path(tempfile.mkdtemp())
    etcd = Etcd(folder)
    services, opened = [], []
    try:
        if options.busy:
            print(f"busy: other programs ran on this machine (load {os.getloadavg()[0]:.0f})")
        print("| what | p50 | p99 | worst | rounds |\n| --- | --- | --- | --- | --- |")
        services = [Service(options.bin / "ddp-rendezvous", etcd.place()) for _ in range(3)]
        program = options.bin / "agents_of_jobs"

        def agents_of(at: list, jobs: int, nodes: int) -> Agents:
            opened.append(Agents(program, at, jobs, nodes))
            return opened[-1]

        few = agents_of(services, 4, 2)
        row("leader killed", changes(few, services, options.rounds, signal.SIGKILL))
        row("leader frozen", changes(few, services, max(2, options.rounds // 4), signal.SIGSTOP))
        few.close()

        deciding = agents_of(services, options.rounds, 4)
        times, alone = [], []
        for job in range(max(2, options.rounds // 4)):
            lost = etcd.call("leader")
            etcd.call("kill", lost)
            begin, prober = now(), Prober(etcd)
            times.append(deciding.decide(job))
            alone.append(prober.first() - begin)
            etcd.call("start", lost)
        row("etcd's leader killed, then a decision", times, more=f" lost: {deciding.lost}")
        row("etcd has no leader", alone)
        row("their difference", [time - floor for time, floor in zip(times, alone)])
        deciding.close()

        on_etcd = agents_of(services, options.rounds, 4)
        on_disk = Service(options.bin / "ddp-rendezvous", f"dir:{folder}/state")
        services.append(on_disk)
        local = agents_of([on_disk], options.rounds, 4)
        alone = Writer(etcd)
        decided = {"decision, etcd": [], "decision, directory": [], "etcd alone": []}
        for job in range(options.rounds):
            decided["decision, etcd"].append(on_etcd.decide(job))
            decided["decision, directory"].append(local.decide(job))
            decided["etcd alone"].append(alone.write_twice())
        for name, times in decided.items():
            row(name, times, 1000.0)
        on_etcd.close()
        local.close()
        services.pop().kill()

        many = agents_of(services, 50, 20)
        row("1,000 agents reconnect",
            changes(many, services, max(2, options.rounds // 4), signal.SIGKILL),
            more=f" lost: {many.lost}")
        many.close()
    finally:
        for agents in opened:
            agents.process.kill()
        for service in services:
            service.kill()
        etcd.call("down")
        shutil.rmtree(folder)


main()
