#!/usr/bin/env python3
"""Compares collectives of the cpu engine with PyTorch's gloo, OpenMPI and the physical floor.

    benchmarks/collectives.py [--bin build/release/bin] [--rounds 11] [--budget-ms 20]
        [--only SECTIONS] [--json FILE] [--docs] [--from FILE] [--smoke]

Prints tables and writes every figure to --json. --docs puts the tables into
docs/measurements/collectives.md, and the plots into docs/measurements/collectives. With --from
it does so with the figures of an earlier run. --smoke measures very little, in some seconds, to
check that everything works.

All systems are measured in one run. Every rank of every system is a process that waits for
orders. One system at a time makes a call many times. A round is over when each system has had
its turn. The figures are medians over the rounds of the mean of a round. The floor of a
collective is the least that it must copy through memory that its ranks share, copied without
reducing or waiting, in parts of the best size of those tried. If this takes less time than the
ranks take to meet, the meeting is the floor.

gloo runs in the python of --python (default: the .venv in the root of the sources); the system
places its threads. MPI needs mpirun and a build that found libopenmpi-dev (openmpi-bin,
libopenmpi-dev). Ranks of MPI and ours are bound to cores. If there are more ranks than cores,
ranks share cores. What is not here is left out, and the script says so.

    two       2 ranks, all_reduce by size: the engine, in shared tensors, through ProcessGroup
    others    2 ranks, the other collectives
    many      4 and 8 ranks, also on 2 cores (MPI yields when idle there)
    network   2 hosts in network namespaces, with 1 and 2 ranks each, at full speed and at 1
              Gbit/s (needs root)
    compute   2 ranks, while as many processes compute on the same cores
    tuning    the engine with other tuning choices than its own
    messages  send and recv: cpu_messages
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

import collectives_report
from collectives_report import size_text
from measured_systems import Hosts, NotHere, System, Way, interleave

ROOT = pathlib.Path(__file__).resolve().parent.parent
KIB, MIB = 1 << 10, 1 << 20
PARTS = (64 * KIB, 256 * KIB, MIB)
SECTIONS = ("two", "others", "many", "network", "compute", "tuning", "messages")


class Bench:
    """What all sections need: the options, a way to start systems, and the figures so far."""

    def __init__(self, options, folder: pathlib.Path) -> None:
        self.options, self.folder, self.records, self.missing = options, folder, [], set()
        self.made, self.ports = 0, 0
        self.budget_us = options.budget_ms * 1000
        # With --smoke the peers run only in the section "two". That is enough to check that they
        # work.
        self.peers = [] if options.smoke else ["gloo", "mpi"]

    def program(self, name: str) -> pathlib.Path:
        return self.options.bin.resolve() / name

    def note(self, **record) -> None:
        self.records.append(record)

    def measure(self, ways: dict, **about) -> None:
        """Measures the ways in turns, and records the results."""
        results = interleave(ways, self.options.rounds)
        for name, result in results.items():
            self.note(**about, system=name, **result)
        shown = ", ".join(f"{name} {result['us']:.5g}" for name, result in results.items())
        print("  ".join(str(word) for word in about.values()) + f":  {shown} us", flush=True)

    @contextlib.contextmanager
    def systems(self, ranks: int, names, longest: int, hosts: Hosts | None = None,
                choices: dict | None = None):
        """Starts the named systems that are here, each with its ranks.

        Ends them at the end of the block.
        """
        running = {}
        self.made += 1
        folder = self.folder / str(self.made)
        folder.mkdir()
        try:
            for name in names:
                try:
                    running[name] = self.start(name, ranks, longest, folder, hosts,
                                               (choices or {}).get(name, []))
                except (NotHere, FileNotFoundError) as why:
                    if name not in ("group", "gloo", "mpi"):
                        raise
                    if name not in self.missing:
                        print(f"{name} is not here: {why}", flush=True)
                    self.missing.add(name)
            yield running
        finally:
            for system in running.values():
                system.end()

    @contextlib.contextmanager
    def floors(self, ranks: int, longest: int, hosts: Hosts | None = None):
        """Starts separate ranks for the floors.

        They copy without waiting, so some of them use more of their cores than others. If they
        were our ranks, the scheduler would give ours less time when their turn comes.
        """
        with self.systems(ranks, ["floors"], longest, hosts=hosts) as running:
            yield running["floors"]

    def start(self, name, ranks, longest, folder, hosts, choices) -> System:
        last = ["--longest", longest]
        if name == "group":
            meet = folder / "group.meet"
            return System(name, ranks, lambda path: [
                [self.program("collectives_group"), "--driver", path, "--rank", rank, "--ranks",
                 ranks, "--meet", meet, *last] for rank in range(ranks)], folder)
        if name == "gloo":
            if not self.options.python.exists():
                raise NotHere("there is no python with PyTorch in .venv: scripts/setup makes one, "
                              "--python names another")
            script = ROOT / "benchmarks/collectives_gloo.py"
            meet = f"tcp://{hosts.ADDRESSES[0]}:29500" if hosts else f"file://{folder}/gloo.meet"
            environment = {"GLOO_SOCKET_IFNAME": "eth0"} if hosts else {}
            return System(name, ranks, lambda path: [
                place(hosts, rank * 2 // ranks,
                      [self.options.python, script, "--driver", path, "--rank", rank, "--ranks",
                       ranks, "--meet", meet, *last]) for rank in range(ranks)], folder,
                          environment)
        if name == "mpi":
            return System(name, ranks,
                          lambda path: [self.mpi_command(ranks, path, last, folder, hosts)], folder)
        if not hosts:
            return System(name, ranks, lambda path: [
                [self.program("collectives_cpu"), "--driver", path, "--ranks", ranks, *last,
                 *choices]], folder)
        self.ports += 1
        store = ["--store-host", hosts.ADDRESSES[0], "--store-port", 29600 + self.ports]
        return System(name, ranks, lambda path: [
            place(hosts, node, [self.program("collectives_cpu"), "--driver", path, "--ranks", ranks,
                                "--nodes", 2, "--first", node * ranks // 2, "--here", ranks // 2,
                                "--address", hosts.ADDRESSES[node], *store, *last, *choices])
            for node in range(2)], folder)

    def mpi_command(self, ranks, path, last, folder, hosts) -> list:
        program = self.program("collectives_mpi")
        if not shutil.which("mpirun") or not program.exists():
            raise NotHere("install openmpi-bin and libopenmpi-dev, and configure the build again")
        many = ranks > os.cpu_count()
        command = ["mpirun", "-n", ranks, "--allow-run-as-root", "--oversubscribe", "--bind-to",
                   "none", "--mca", "mpi_yield_when_idle", int(many), "--mca", "btl", "^openib",
                   "--mca", "pml", "ob1"]
        if hosts:
            agent = folder / "agent"
            cases = "".join(f"node{node}) exec {' '.join(hosts.on(node))} sh -c \"$*\" ;;\n"
                            for node in range(2))
            agent.write_text(f"#!/bin/sh\nhost=$1\nshift\ncase $host in\n{cases}esac\n")
            agent.chmod(0o755)
            each = ranks // 2
            command += ["--host", f"node0:{each},node1:{each}", "--mca", "plm_rsh_agent", agent,
                        "--mca", "oob_tcp_if_include", "eth0", "--mca", "btl_tcp_if_include",
                        "eth0"]
        return place(hosts, 0, [*command, program, "--driver", path, "--bind", *last])


def place(hosts: Hosts | None, node: int, command: list) -> list:
    return hosts.on(node, *map(str, command)) if hosts else command


# --- floors: what a collective must copy, by rank: bytes in, out, from buffer to buffer, and only
# read; the offset of the last two ---


def must_copy(call: str, size: int, ranks: int, rank: int) -> tuple:
    share = size // ranks
    others = share * (ranks - 1)
    return {
        "all_reduce": (size, 2 * others, 0, 0, 0),
        "broadcast": (size, 0, 0, 0, 0) if rank == 0 else (0, size, 0, 0, 0),
        "all_gather": (share, others, share, 0, 0),
        # The rank's own share is reduced in place.
        "reduce_scatter": (others, others, 0, share, others),
        "all_to_all": (others, others, share, 0, others),
    }[call]


def floor_ways(bench: Bench, floors: System, call: str, size: int) -> dict:
    def copies(part):
        return lambda rank: [size, *must_copy(call, size, floors.ranks, rank), part]

    parts = [part for part in PARTS if part <= size] or [size]
    return {f"floor {part}": Way(floors, "copies", copies(part), bench.budget_us) for part in parts}


def measure_meeting(bench: Bench, floors: System, section: str) -> None:
    ways = {}
    if floors.ranks <= os.cpu_count():
        ways["spin"] = Way(floors, "meet", [0], bench.budget_us)
    ways["yield"] = Way(floors, "meet", [1], bench.budget_us)
    ways["futex"] = Way(floors, "meet", [2], bench.budget_us)
    bench.measure(ways, section=section, call="meet", bytes=0, ranks=floors.ranks)


# --- sections ---


def two(bench: Bench) -> None:
    sizes = ([4, 65536] if bench.options.smoke else [4, 64, KIB, 4 * KIB, 16 * KIB, 64 * KIB,
                                                     256 * KIB, MIB, 4 * MIB, 25 * MIB, 100 * MIB])
    with bench.systems(2, ["ours", "group", "gloo", "mpi"], sizes[-1]) as running, \
            bench.floors(2, sizes[-1]) as floors:
        ours = running["ours"]
        measure_meeting(bench, floors, "two")
        for size in sizes:
            ways = {name: Way(system, "all_reduce", [size], bench.budget_us)
                    for name, system in running.items()}
            ways["shared"] = Way(ours, "shared", [size], bench.budget_us)
            ways |= floor_ways(bench, floors, "all_reduce", size)
            ways[f"single {size}"] = Way(floors, "single", [max(size, 16)], bench.budget_us)
            bench.measure(ways, section="two", call="all_reduce", bytes=size, ranks=2)


def others(bench: Bench) -> None:
    sizes = [65536] if bench.options.smoke else [4 * KIB, 64 * KIB, MIB, 25 * MIB]
    with bench.systems(2, ["ours", "group", *bench.peers], sizes[-1]) as running, \
            bench.floors(2, sizes[-1]) as floors:
        measure_meeting(bench, floors, "others")
        bench.measure({name: Way(system, "barrier", [], bench.budget_us)
                       for name, system in running.items()}, section="others", call="barrier",
                      bytes=0, ranks=2)
        for call in ("broadcast", "all_gather", "reduce_scatter", "all_to_all"):
            for size in sizes:
                ways = {name: Way(system, call, [size], bench.budget_us)
                        for name, system in running.items()}
                ways |= floor_ways(bench, floors, call, size)
                bench.measure(ways, section="others", call=call, bytes=size, ranks=2)


def many(bench: Bench) -> None:
    sizes = [65536] if bench.options.smoke else [4, 64 * KIB, MIB, 25 * MIB]
    for ranks in [4] if bench.options.smoke else [4, 8]:
        with bench.systems(ranks, ["ours", *bench.peers], sizes[-1]) as running, \
                bench.floors(ranks, sizes[-1]) as floors:
            measure_meeting(bench, floors, "many")
            bench.measure({name: Way(system, "barrier", [], bench.budget_us)
                           for name, system in running.items()}, section="many", call="barrier",
                          bytes=0, ranks=ranks)
            for size in sizes:
                ways = {name: Way(system, "all_reduce", [size], bench.budget_us)
                        for name, system in running.items()}
                ways |= floor_ways(bench, floors, "all_reduce", size)
                bench.measure(ways, section="many", call="all_reduce", bytes=size, ranks=ranks)


def network(bench: Bench) -> None:
    try:
        hosts = Hosts()
    except NotHere as why:
        print(f"no hosts in namespaces: {why}")
        bench.missing.add("network")
        return
    try:
        for ranks in [2] if bench.options.smoke else [2, 4]:
            # Four ranks share two cores. That determines their times; only the bytes tell about the
            # algorithm.
            sizes = ([65536] if bench.options.smoke else [4, 64 * KIB, MIB, 25 * MIB] if ranks == 2
                     else [MIB, 25 * MIB])
            with bench.systems(ranks, ["ours", *bench.peers], sizes[-1], hosts=hosts) as running, \
                    bench.floors(ranks, sizes[-1], hosts) as floors:
                for rate in (None, "1gbit"):
                    hosts.shape(rate)
                    for size in sizes:
                        ways = {name: Way(system, "all_reduce", [size], bench.budget_us)
                                for name, system in running.items()}
                        # The bytes that each of two nodes must send and receive, over one
                        # connection for each of its ranks.
                        ways["floor"] = Way(floors, "exchange", [max(size * 2 // ranks, 4)],
                                            bench.budget_us)
                        bench.measure(ways, section="network", call="all_reduce", bytes=size,
                                      ranks=ranks, rate=rate or "")
                        for name, way in ways.items():
                            if rate is None and way.count and name != "floor":
                                before = hosts.sent()
                                way.system.repeat("all_reduce", 10, 0, [size])
                                sent = max(now - then for now, then in zip(hosts.sent(), before))
                                bench.note(section="wire", call="all_reduce", bytes=size,
                                           ranks=ranks, system=name, sent=sent // 10)
    finally:
        hosts.close()


def compute(bench: Bench) -> None:
    """Measures all_reduces while the same cores compute, and the time left for computing."""
    sizes = [65536] if bench.options.smoke else [64 * KIB, MIB, 25 * MIB]
    with bench.systems(2, ["ours", *bench.peers], sizes[-1]) as running:
        computing = System("computing", 2, lambda path: [
            [bench.program("computing"), "--driver", path, "--core", core] for core in range(2)],
                           bench.folder)
        budget_us = bench.budget_us * 10  # many time slices

        def passes(work) -> tuple:
            computing.tell(["start"] * 2)
            done = work()
            return done, sum(map(float, computing.tell(["stop"] * 2)))

        for size in sizes:
            ways = {name: Way(system, "all_reduce", [size], budget_us)
                    for name, system in running.items()}
            busy = {name: Way(system, "all_reduce", [size], budget_us)
                    for name, system in running.items()}
            rates = {name: [] for name in ways}
            alone = []
            for way in [*ways.values(), *busy.values()]:
                way.warm_up()
            for _ in range(max(3, bench.options.rounds // 2) if not bench.options.smoke else 1):
                _, rate = passes(lambda: rest(budget_us / 1e6))
                alone.append(rate)
                for name in ways:
                    ways[name].go()
                    _, rate = passes(busy[name].go)
                    rates[name].append(rate)
            for name in ways:
                quiet, with_work = ways[name].result(), busy[name].result()
                share = sorted(rates[name])[len(rates[name]) // 2] / sorted(alone)[len(alone) // 2]
                bench.note(section="compute", call="all_reduce", bytes=size, ranks=2, system=name,
                           quiet_us=quiet["us"], compute=round(share, 4), **with_work)
                print(f"compute  all_reduce  {size}  {name}: {quiet['us']:.5g} us alone, "
                      f"{with_work['us']:.5g} us while computing, which gets {share:.0%} of the "
                      "cores", flush=True)
        computing.end()


def rest(seconds: float) -> None:
    """Waits, and leaves the cores to the other processes meanwhile."""
    time.sleep(seconds)


def messages(bench: Bench) -> None:
    sizes = (["64", "65536"] if bench.options.smoke
             else ["64", "1024", "65536", "1048576", "4194304", "67108864"])
    for nodes in (1, 2):
        out = subprocess.run([bench.program("cpu_messages"), "--json", "--nodes", str(nodes),
                              "--rounds", str(bench.options.rounds), "--budget-ms",
                              str(max(1, bench.options.budget_ms // 2)), "--sizes", *sizes],
                             check=True, stdout=subprocess.PIPE, text=True).stdout
        for line in out.splitlines():
            record = json.loads(line)
            bench.note(section="messages", nodes=nodes, **record)
            print(f"messages  {nodes} nodes  {line}", flush=True)


def tuning(bench: Bench) -> None:
    """Measures each choice of CpuTuning, with all others unchanged.

    worker_lib/cpu_kernels/tuning.h has the choices.
    """
    def compare(choice: str, option: str, values: dict, ranks: int, cases: list,
                hosts: Hosts | None = None) -> None:
        choices = {name: [option, value] for name, value in values.items()}
        longest = max(size for _, size in cases)
        with bench.systems(ranks, choices, max(longest, KIB), hosts=hosts,
                           choices=choices) as running:
            for call, size in cases:
                bench.measure({name: Way(system, call, [size], bench.budget_us)
                               for name, system in running.items()}, section="tuning",
                              choice=choice, call=call, bytes=size, ranks=ranks)

    smoke = bench.options.smoke
    compare("spin", "--spin-us",
            {"none": 0} if smoke else {"none": 0, "5 us": 5, "20 us": 20, "100 us": 100}, 2,
            [("barrier", 0), ("all_reduce", 4)]
            + ([] if smoke else [("all_reduce", size) for size in (64 * KIB, MIB, 25 * MIB)]))
    if smoke:
        return
    stages = {size_text(size): size for size in (64 * KIB, 128 * KIB, 256 * KIB, 512 * KIB, MIB)}
    for ranks in (2, 4):
        compare("stage", "--stage-bytes", stages, ranks, [("all_reduce", size) for size in (
            256 * KIB, MIB, 4 * MIB, 25 * MIB)] + [("all_gather", MIB), ("all_gather", 25 * MIB)])
    compare("long all_reduce, chunk", "--direct-chunk-bytes",
            {size_text(size): size for size in (64 * KIB, 128 * KIB, 256 * KIB)}, 2,
            [("all_reduce", size) for size in (8 * MIB, 16 * MIB, 25 * MIB, 100 * MIB)])
    for ranks in (4, 8):
        compare("small reduce", "--small-reduce-bytes", {"shares": 0, "all reduce all": 1 << 40},
                ranks,
                [("all_reduce", size)
                 for size in (4, 4 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 256 * KIB)])
    for ranks in (2, 4):
        compare("shared tensors", "--in-place-bytes", {"staged": 1 << 40, "in place": 0}, ranks,
                [("shared", size)
                 for size in (4, 4 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 256 * KIB)])
    for ranks in (2, 4):
        compare("long moves", "--pull-bytes", {"staged": 1 << 40, "one copy": 0}, ranks,
                [(call, size) for call in ("all_gather", "all_to_all") for size in (
                    4 * KIB, 16 * KIB, 64 * KIB, 256 * KIB, MIB, 25 * MIB)])
    for ranks in (2, 4):
        compare("results", "--stream-bytes", {"through the caches": 1 << 40, "past them": 0}, ranks,
                [(call, size)
                 for call in ("broadcast", "all_gather", "reduce_scatter", "all_to_all")
                 for size in (4 * MIB, 16 * MIB, 25 * MIB, 100 * MIB)])
    with contextlib.suppress(NotHere), contextlib.closing(Hosts()) as hosts:
        compare("stage, 2 nodes", "--stage-bytes", stages, 2,
                [("all_reduce", size) for size in (256 * KIB, MIB, 4 * MIB, 25 * MIB)], hosts)
        hosts.shape("1gbit")
        compare("stage, 2 nodes at 1 Gbit/s", "--stage-bytes", stages, 2,
                [("all_reduce", size) for size in (256 * KIB, MIB, 4 * MIB, 25 * MIB)], hosts)


def torch_version(python: pathlib.Path) -> str:
    for wheel in python.parent.parent.glob("lib/python3*/site-packages/torch-*.dist-info"):
        return wheel.name.removeprefix("torch-").removesuffix(".dist-info")
    return ""


def facts(python: pathlib.Path) -> dict:
    """Returns facts of the machine on which the figures depend."""
    def first_of(pattern: str, path: str) -> str:
        for line in pathlib.Path(path).read_text().splitlines():
            if line.startswith(pattern):
                return line.split(":", 1)[1].strip()
        return "unknown"

    mpi = ""
    if shutil.which("mpirun"):
        mpi = subprocess.run(["mpirun", "--version"], stdout=subprocess.PIPE, text=True,
                             check=False).stdout.split("\n")[0]
    return {"processor": first_of("model name", "/proc/cpuinfo"), "cores": os.cpu_count(),
            "kernel": os.uname().release, "load": round(os.getloadavg()[0], 1),
            "mpi": mpi.split()[-1] if mpi else "", "torch": torch_version(python)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=ROOT / "build/release/bin", type=pathlib.Path)
    parser.add_argument("--python", default=ROOT / ".venv/bin/python3", type=pathlib.Path,
                        help="with PyTorch")
    parser.add_argument("--rounds", default=11, type=int)
    parser.add_argument("--budget-ms", default=20, type=int, help="of one measurement")
    parser.add_argument("--only", default=",".join(SECTIONS), help="sections")
    parser.add_argument("--json", type=pathlib.Path, help="where every figure goes")
    parser.add_argument("--docs", action="store_true", help="put tables and plots into docs")
    parser.add_argument("--from", dest="source", type=pathlib.Path,
                        help="figures of an earlier run")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    if options.smoke:
        options.rounds, options.budget_ms = 1, 1

    if options.source:
        figures = json.loads(options.source.read_text())
    else:
        with tempfile.TemporaryDirectory() as folder:
            bench = Bench(options, pathlib.Path(folder))
            figures = facts(options.python)
            for section in options.only.split(","):
                {"two": two, "others": others, "many": many, "network": network, "compute": compute,
                 "tuning": tuning, "messages": messages}[section](bench)
            figures |= {"rounds": options.rounds, "missing": sorted(bench.missing),
                        "records": bench.records}
    print("\n" + collectives_report.text(collectives_report.Figures(figures)))
    page = ROOT / "docs/measurements/collectives.md"
    if options.docs:
        collectives_report.into_docs(collectives_report.Figures(figures), page)
    elif options.smoke:
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / page.name
            copy.write_text(page.read_text())
            collectives_report.into_docs(collectives_report.Figures(figures), copy)
    if options.json:
        about = {name: value for name, value in figures.items() if name != "records"}
        lines = ",\n".join(json.dumps(record) for record in figures["records"])
        options.json.write_text(f'{json.dumps(about)[:-1]}, "records": [\n{lines}\n]}}\n')


if __name__ == "__main__":
    main()
