"""Runs jobs whose agents and services have different versions.

argv[1]: the folder of this version's programs. argv[2], or DDPRUN_OLD_BIN: that of another version.
Without it, this version plays both, which only shows that the test works.

Each case has services that replace each other at one address, with one state, while a job of two
nodes runs. No worker may be restarted by that. Then a worker is killed, which is one restart on
both nodes, and the job succeeds.
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request

PATIENCE = 30.0  # seconds
NEW = pathlib.Path(sys.argv[1])
OLD = pathlib.Path(sys.argv[2] if len(sys.argv) > 2 else os.environ.get("DDPRUN_OLD_BIN", NEW))
WORKER = """
echo "started $TORCHELASTIC_RESTART_COUNT by $$"
until [ -e "$GO" ]; do sleep 0.05; done
"""


def until(what: str, condition) -> None:
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, f"waited {PATIENCE} s for {what}"
        time.sleep(0.02)


class Program:
    """A process whose output goes to a file."""

    def __init__(self, log: pathlib.Path, command: list, **variables: str) -> None:
        self.log = log
        with log.open("w", encoding="utf-8") as out:
            self.process = subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True,
                                            env={**os.environ, **variables})

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def await_text(self, pattern: str) -> re.Match:
        until(f"'{pattern}' in\n{self.text()}", lambda: re.search(pattern, self.text()))
        return re.search(pattern, self.text())

    def end(self, how: int) -> None:
        self.process.send_signal(how)
        self.process.wait(PATIENCE)


class Case:
    """A job, and the service that it has now."""

    def __init__(self, folder: pathlib.Path, state: str) -> None:
        self.folder = folder
        self.state = state
        self.go = folder / "go"
        self.address = "127.0.0.1:0"
        self.service = None
        self.agents = []
        self.count = 0

    def serve(self, version: pathlib.Path) -> None:
        self.count += 1
        self.service = Program(
            self.folder / f"service{self.count}",
            [version / "ddp-rendezvous", f"--listen={self.address}", self.state])
        self.address = self.service.await_text(r"listening on (127\.0\.0\.1:\d+)")[1]

    def join(self, version: pathlib.Path) -> None:
        self.agents.append(Program(
            self.folder / f"agent{len(self.agents)}",
            [version / "ddprun", f"--rdzv-endpoint={self.address}", "--rdzv-id=job", "--nnodes=2",
             "--max-restarts=3", "sh", "-c", WORKER], GO=str(self.go)))

    def has_both(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://{self.address}/status.json") as reply:
                jobs = json.load(reply)["jobs"]
        except OSError:  # a standby, or a service that does not lead yet
            return False
        return bool(jobs) and [node["connected"] for node in jobs[0]["nodes"]] == [True, True]

    def run(self, services: list, agents: list) -> None:
        self.serve(services[0])
        for agent in agents:
            self.join(agent)
        pids = [int(agent.await_text(r"started 0 by (\d+)")[1]) for agent in self.agents]
        for number, service in enumerate(services[1:]):
            self.service.end(signal.SIGKILL if number % 2 else signal.SIGTERM)
            self.serve(service)
            until(f"both agents at {self.service.text()}", self.has_both)
        assert all(agent.text().count("started") == 1 for agent in self.agents), self.texts()
        os.kill(pids[0], signal.SIGKILL)
        for agent in self.agents:
            agent.await_text(r"started 1 by")
        self.go.touch()
        for agent in self.agents:
            assert agent.process.wait(PATIENCE) == 0, self.texts()
            assert agent.text().count("started") == 2, self.texts()
        self.service.end(signal.SIGTERM)

    def texts(self) -> str:
        return "\n".join(f"--- {file.name}\n{file.read_text()}" for file in
                         sorted(self.folder.iterdir()))

    def close(self) -> None:
        for program in [*self.agents, self.service]:
            if program and program.process.poll() is None:
                os.killpg(program.process.pid, signal.SIGKILL)
                program.process.wait()


def knows_etcd(version: pathlib.Path) -> bool:
    text = subprocess.run([version / "ddp-rendezvous", "--help"], stdout=subprocess.PIPE,
                          stderr=subprocess.STDOUT, text=True, check=False).stdout
    return "etcd" in text


class Etcd:
    """One member of etcd, if the testbed is there."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.testbed = os.environ.get("DDPRUN_TESTBED")
        self.environment = {**os.environ, "EC_STATE": str(folder / "etcd")}

    def call(self, *command: str) -> str:
        return subprocess.run([f"{self.testbed}/etcd-cluster", *command], check=True, text=True,
                              env=self.environment, stdout=subprocess.PIPE).stdout.strip()

    def __enter__(self):
        if self.testbed:
            self.call("up", "1")
        return self

    def __exit__(self, *ignored) -> None:
        if self.testbed:
            self.call("down")


def main() -> None:
    whole = OLD != NEW
    cases = [("upgrade", [OLD, NEW, NEW], [OLD, OLD])]
    if whole:
        cases += [("upgrade, mixed agents", [OLD, NEW], [OLD, NEW]),
                  ("new service", [NEW, NEW], [OLD, NEW]),
                  ("old service", [OLD, OLD], [NEW, NEW]),
                  ("downgrade", [NEW, OLD], [NEW, OLD])]
    with tempfile.TemporaryDirectory() as top, Etcd(pathlib.Path(top)) as etcd:
        runs = [(*case, "directory") for case in cases]
        if etcd.testbed:
            if knows_etcd(OLD):
                runs += [(*case, "etcd") for case in cases]
            else:
                runs.append(("old agents, services on etcd", [NEW, NEW, NEW], [OLD, OLD], "etcd"))
        for number, (name, services, agents, where) in enumerate(runs):
            folder = pathlib.Path(top, str(number))
            folder.mkdir()
            state = f"--state-dir={folder}-state"
            if where == "etcd":
                place = etcd.call("endpoints").replace("http://", "etcd://")
                state = f"--state={place}/case{number}"
            case = Case(folder, state)
            try:
                case.run(services, agents)
            except AssertionError:
                print(case.texts())
                raise
            finally:
                case.close()
            print(f"ok: {name} ({where})")


main()
