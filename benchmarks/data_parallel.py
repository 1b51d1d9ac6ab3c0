#!/usr/bin/env python3
"""Measures what DistributedDataParallel costs.

It measures steps of an MLP on two ranks, with DistributedDataParallel and without it. Ours and
PyTorch's over gloo take turns. The all_reduce of the gradients is measured alone, and in a step
without any overlap. The cost of a step is the median over the rounds of the ratio within a
round, because the figures of one round come from the same quarter of a minute.

    benchmarks/data_parallel.py [--rounds N] [--docs]

--docs puts the table into docs/measurements/data_parallel.md. Use an idle machine.
"""

import argparse
import json
import pathlib
import re
import statistics
import tempfile

from collectives import facts
from collectives_report import figure, ratio_text, table, time_text
from measured_systems import NotHere, System, Way, interleave

ROOT = pathlib.Path(__file__).resolve().parent.parent
# By width, layers, samples of a rank: how much more a step may cost with DistributedDataParallel.
NETS = {(256, 4, 16): 0.12, (512, 7, 16): 0.08, (1024, 5, 64): 0.05}
# Or this multiple of what an all_reduce adds to a step without overlap. There it takes longer
# than alone, because the step has displaced the gradients from the caches.
FLOOR = 1.5
CALLS = ("plain", "ddp", "noop", "reduce", "within")


def mebibytes(net: tuple) -> float:
    width, layers, _ = net
    return layers * (width + 1) * width * 4 / (1 << 20)


def measure(options, folder: pathlib.Path, backends: dict, calls: tuple = CALLS) -> list:
    """Returns the figures by net. backends: PyTorch's backend by the name of the system."""
    ranks = 2
    ours = System("ours", ranks, lambda path: [
        [options.bin.resolve() / "data_parallel_steps", "--driver", path, "--rank", rank, "--ranks",
         ranks, "--meet", folder / "ours.meet"] for rank in range(ranks)], folder,
                  {"OMP_NUM_THREADS": "1"})
    systems = {"ours": ours}
    environment = {"PYTHONPATH": str(ROOT / "python"), "DDPRUN_CPU_LIBRARY":
                   str(options.bin.resolve().parent / "lib/libddprun_cpu.so")}
    for name, backend in backends.items():
        try:
            systems[name] = System(name, ranks, lambda path, backend=backend: [
                [options.python, ROOT / "benchmarks/data_parallel_steps.py", "--driver", path,
                 "--rank", rank, "--ranks", ranks, "--meet", f"file://{folder}/{backend}.meet",
                 "--backend", backend] for rank in range(ranks)], folder, environment)
        except (NotHere, FileNotFoundError) as why:
            print(f"PyTorch is not here: {why}", flush=True)
    records = []
    try:
        for net in NETS:
            ways = {f"{name} {call}": Way(system, call, net, options.budget_ms * 1000)
                    for call in calls
                    for name, system in systems.items()}
            results = interleave(ways, options.rounds)
            records.append({"net": net, **{name: result["us"] for name, result in results.items()}})
            for name in results:
                base = f"{name.split()[0]} plain"
                ratios = [us / plain for us, plain in zip(ways[name].times, ways[base].times)]
                records[-1][f"{name} more"] = statistics.median(ratios) - 1
            shown = ", ".join(f"{name} {result['us']:.5g}" for name, result in results.items())
            print(f"{net}: {shown} us", flush=True)
    finally:
        for system in systems.values():
            system.end()
    return records


def report(records: list) -> str:
    rows = []
    for record in records:
        net = tuple(record["net"])
        plain, own = record["ours plain"], record["ours ddp more"]
        floor = record["ours within more"]
        goal = max(NETS[net], FLOOR * floor)
        theirs = record.get("pytorch ddp more")
        exposed = (own - record["ours noop more"]) * plain
        rows.append([
            f"{figure(mebibytes(net))} MiB", f"{net[1]} layers of {net[0]}, {net[2]} samples",
            time_text(plain), time_text(record["ours ddp"]), f"{own:.0%}",
            f"{goal:.0%}", "yes" if own <= goal else "**no**",
            time_text(record["ours reduce"]), time_text(max(floor, 0) * plain),
            time_text(max(exposed, 0)), f"{record['ours noop more']:.0%}",
            time_text(record.get("pytorch plain")), time_text(record.get("pytorch ddp")),
            f"{theirs:.0%}" if theirs is not None else "",
            ratio_text(record["pytorch ddp"] / record["ours ddp"]) if theirs is not None else ""])
    return table(["gradients", "net", "alone", "with DDP", "more", "goal", "met",
                  "all_reduce alone", "in a step", "exposed", "hooks and buckets", "PyTorch alone",
                  "with DDP", "more", "R"], rows)


def into_docs(text: str, about: dict, page: pathlib.Path, place: str) -> None:
    """Writes the table into the page.

    It goes between <!-- measured: PLACE --> and <!-- end of PLACE -->.
    """
    part = (f"{about['processor']}, {about['cores']} cores, Linux {about['kernel']}, PyTorch "
            f"{about['torch']}.\n\n{text}")
    whole, found = re.subn(rf"(<!-- measured: {place} -->\n).*?(<!-- end of {place} -->)",
                           lambda match: f"{match[1]}\n{part}\n\n{match[2]}", page.read_text(),
                           flags=re.S)
    if found != 1:
        raise ValueError(f"{page} has no place for what was measured of '{place}'")
    page.write_text(whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bin", default=ROOT / "build/release/bin", type=pathlib.Path)
    parser.add_argument("--python", default=ROOT / ".venv/bin/python3", type=pathlib.Path,
                        help="with PyTorch")
    parser.add_argument("--rounds", default=11, type=int)
    parser.add_argument("--budget-ms", default=200, type=int, help="of one measurement")
    parser.add_argument("--docs", action="store_true", help="put the table into docs")
    parser.add_argument("--json", type=pathlib.Path, help="where every figure goes")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    if options.smoke:
        options.rounds, options.budget_ms = 1, 1
    with tempfile.TemporaryDirectory() as folder:
        records = measure(options, pathlib.Path(folder),
                          {} if options.smoke else {"pytorch": "gloo"})
    text, about = report(records), facts(options.python)
    print("\n" + text)
    page = ROOT / "docs/measurements/data_parallel.md"
    if options.docs:
        into_docs(text, about, page, "steps")
    elif options.smoke:
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / page.name
            copy.write_text(page.read_text())
            into_docs(text, about, copy, "steps")
    if options.json:
        figures = {**about, "rounds": options.rounds, "records": records}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
