#!/usr/bin/env python3
"""Measures torch.distributed on the backend "ddprun" against gloo, in Python processes.

    benchmarks/python_collectives.py [--ranks N ...] [--rounds N] [--docs]

- all_reduce: each rank has both backends, which take turns. Then the function of the library alone
  takes turns with the backend, without gloo: gloo's threads would disturb the first call after
  them. What a call of torch.distributed adds to the library's is the cost of Python.
- A step of DistributedDataParallel, with 2 ranks: over gloo, over ddprun, in C++, and with a hook
  that sends nothing (data_parallel_steps.py). "more" is relative to a step of the same system
  without DDP: the median of the ratios in each round.

Figures are medians of the rounds on rank 0. --docs puts the tables into
docs/measurements/python.md. Use an idle machine. The library is in the folder lib next to --bin.
"""
import argparse
import datetime
import json
import os
import pathlib
import statistics
import struct
import sys
import tempfile
import time

from collectives import facts
from collectives_report import MIB, figure, ratio_text, size_text, table, time_text
from data_parallel import into_docs, measure as measure_steps, mebibytes

ROOT = pathlib.Path(__file__).resolve().parent.parent
SIZES = [4, 64 << 10, MIB, 25 * MIB, 100 * MIB]  # bytes


def seconds_of(call, times):
    import torch.distributed as dist

    dist.barrier()
    begin = time.perf_counter()
    for _ in range(times):
        call()
    return (time.perf_counter() - begin) / times


def measure(calls, times, rounds):
    """Returns the median microseconds of each call; the calls take turns."""
    found = {name: [] for name in calls}
    for round_number in range(rounds + 1):
        for name, call in calls.items():
            seconds = seconds_of(call, times)
            if round_number > 0:  # the first round warms up
                found[name].append(seconds)
    return {name: 1e6 * statistics.median(values) for name, values in found.items()}


def rank_main(rank, ranks, options, folder):
    import torch
    import torch.distributed as dist
    from ddprun import _engine

    torch.set_num_threads(1)
    dist.init_process_group("ddprun", init_method=f"file://{folder}/init", rank=rank,
                            world_size=ranks)
    group, gloo = dist.group.WORLD, dist.new_group(backend="gloo")
    rows = []
    for size in options.sizes:
        tensor = torch.zeros(size // 4)
        buffer = struct.pack("PN", tensor.data_ptr(), size)
        ours = lambda: dist.all_reduce(tensor)  # noqa: E731
        times = max(2, min(500, (16 << 20) // size))
        row = measure({"gloo": lambda: dist.all_reduce(tensor, group=gloo), "ddprun": ours}, times,
                      options.rounds)
        alone = measure({"library": lambda: _engine.all_reduce(group._handle, buffer, 1, 8, 0,
                                                               10**12, None), "ddprun": ours},
                        times, options.rounds)
        rows.append({"ranks": ranks, "bytes": size, **row, "library": alone["library"],
                     "alone": alone["ddprun"]})
    if rank == 0:
        pathlib.Path(folder, "rows.json").write_text(json.dumps(rows))
    dist.destroy_process_group()


def measure_all_reduce(options):
    library = options.bin.resolve().parent / "lib/libddprun_cpu.so"
    os.environ.setdefault("DDPRUN_CPU_LIBRARY", str(library))
    sys.path.insert(0, str(ROOT / "python"))
    import ddprun  # noqa: F401  it registers the backend
    import torch.multiprocessing as mp

    rows = []
    for ranks in options.ranks:
        with tempfile.TemporaryDirectory() as folder:
            mp.start_processes(rank_main, (ranks, options, folder), ranks, start_method="fork")
            rows += json.loads(pathlib.Path(folder, "rows.json").read_text())
    return rows


def goal_of(row):
    """Returns the goal as text, and whether it is met."""
    size, library, alone = row["bytes"], row["library"], row["alone"]
    if row["ranks"] > 2:
        return ("R >= 5", row["gloo"] >= 5 * row["ddprun"]) if size == MIB else ("", None)
    if size < 1 << 10:
        return "<= 20 us", alone <= 20
    if size < MIB:
        return "<= library + 15 us", alone <= library + 15
    return "<= 1.25 x library", alone <= 1.25 * library


def met_text(met):
    return {None: "", True: "yes", False: "**no**"}[met]


def report(rows, steps):
    calls = []
    for row in rows:
        goal, met = goal_of(row)
        calls.append([str(row["ranks"]), size_text(row["bytes"]), time_text(row["gloo"]),
                      time_text(row["ddprun"]), ratio_text(row["gloo"] / row["ddprun"]),
                      time_text(row["library"]), time_text(row["alone"]), goal, met_text(met)])
    nets = []
    for record in steps:
        net = record["net"]
        more = {name: record.get(f"{name} more") for name in
                ("gloo ddp", "ddprun ddp", "ddprun floor", "ours ddp")}
        met = more["ddprun ddp"] <= more["ours ddp"] + 0.05 if more["ddprun ddp"] else None
        nets.append([f"{figure(mebibytes(net))} MiB", f"{net[1]} layers of {net[0]}",
                     time_text(record.get("ddprun plain")),
                     *("" if one is None else f"{one:.0%}" for one in more.values()),
                     met_text(met)])
    return (table(["ranks", "all_reduce", "gloo", "ddprun", "R", "library", "ddprun in turn",
                   "goal", "met"], calls) + "\n\n"
            + table(["gradients", "net", "a step alone", "gloo, more", "ddprun, more",
                     "sends nothing, more", "C++, more", "<= C++ + 5 points"], nets))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--bin", default=ROOT / "build/release/bin", type=pathlib.Path)
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--budget-ms", default=200, type=int, help="of one measurement of steps")
    parser.add_argument("--docs", action="store_true", help="put the tables into docs")
    parser.add_argument("--json", type=pathlib.Path, help="where every figure goes")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    options.sizes, backends = SIZES, ("gloo", "ddprun")
    if options.smoke:
        options.ranks, options.rounds, options.budget_ms = [2], 1, 1
        options.sizes, backends = SIZES[:3], ("ddprun",)
    options.python = pathlib.Path(sys.executable)
    with tempfile.TemporaryDirectory() as folder:
        steps = measure_steps(options, pathlib.Path(folder), dict(zip(backends, backends)),
                              ("plain", "ddp", "floor"))
    rows = measure_all_reduce(options)
    about = facts(options.python)
    text = (f"{datetime.date.today()}, load {about['load']} after the run.\n\n"
            + report(rows, steps))
    print("\n" + text)
    page = ROOT / "docs/measurements/python.md"
    if options.docs:
        into_docs(text, about, page, "python")
    elif options.smoke:
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / page.name
            copy.write_text(page.read_text())
            into_docs(text, about, copy, "python")
    if options.json:
        figures = {**about, "rounds": options.rounds, "all_reduce": rows, "steps": steps}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
