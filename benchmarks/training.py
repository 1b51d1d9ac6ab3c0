#!/usr/bin/env python3
"""Measures complete trainings: samples a second, and where the time of a step goes.

The examples in C++ under ddprun take turns with the same examples in Python under torchrun, with
PyTorch's DDP over gloo, and over the backend "ddprun". There are two workers with one thread each.

    benchmarks/training.py [NAME ...] [--rounds N] [--docs]

NAME: train_digits, resnet18, chargpt; none: all. --docs puts the tables into
docs/measurements/training.md. Use an idle machine.

resnet18 and chargpt take --breakdown, --steps and --warmup. Then rank 0's last line is
{"samples_per_second": ..., "breakdown_ms": {"data": ..., "forward": ..., "backward": ...,
"optimizer": ...}}, with means over the steps after the warm-up. It may also have
"exposed_communication": the part of "backward" that is not computing. train_digits and
ddp_digits.py print samples/s for each epoch; the first one does not count.
"""

import argparse
import json
import os
import pathlib
import random
import re
import signal
import statistics
import string
import struct
import subprocess
import sys
import tempfile
from typing import NamedTuple

from collectives import facts
from collectives_report import figure, table, time_text
from data_parallel import into_docs
from measured_systems import DIES_WITH_US, NotHere

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORKERS = 2
GOAL = 1.0  # samples a second in C++, divided by those in Python
PATIENCE = 900  # seconds for one run
PHASES = ("data", "forward", "backward", "exposed_communication", "optimizer")
SYSTEMS = {"ours": "C++", "pytorch": "Python gloo", "backend": "Python ddprun"}
FOLDER = "{folder}"  # the folder that write_data() fills


class Case(NamedTuple):
    program: str
    about: str
    options: list
    steps: int  # 0: whole epochs, without a breakdown
    warmup: int
    backend_goal: float = 0  # samples a second with the backend "ddprun", divided by gloo's

    @property
    def script(self) -> pathlib.Path:
        name = "ddp_digits" if self.program == "train_digits" else self.program
        return ROOT / f"examples/{name}.py"


CASES = [
    Case("train_digits", "8 x 8 pixels, batches of 32", ["--epochs=12"], 0, 0, 1.5),
    Case("resnet18", "width 16, 8 x 8 pixels, batches of 32",
         ["--batch-norm=plain", "--width=16", "--batch-size=32"], 100, 20, 1.5),
    Case("resnet18", "width 64, 28 x 28 pixels, batches of 32",
         ["--batch-norm=plain", "--width=64", "--batch-size=32", f"--data={FOLDER}/fashion"], 6, 2),
    Case("chargpt", "its defaults", [f"--data={FOLDER}/text"], 50, 10, 1.2),
]
# Cases that check that the benchmark works, not how fast it is.
SMOKE = [
    Case("train_digits", "2 epochs", ["--epochs=2"], 0, 0),
    Case("resnet18", "width 1, 28 x 28 pixels, batches of 2",
         ["--batch-norm=plain", "--width=1", "--batch-size=2", f"--data={FOLDER}/fashion"], 1, 0),
    Case("chargpt", "1 layer of width 8",
         [f"--data={FOLDER}/text", "--layers=1", "--heads=1", "--width=8", "--block=8"], 2, 1),
]


def write_data(folder: pathlib.Path) -> None:
    """Writes noise: images of FashionMNIST's format and size, and a text.

    What the nets learn does not matter here.
    """
    noise, count, side = random.Random(1), 256, 28
    (folder / "fashion").mkdir()
    (folder / "fashion/train-images-idx3-ubyte").write_bytes(
        struct.pack(">HBBIII", 0, 8, 3, count, side, side) + noise.randbytes(count * side * side))
    (folder / "fashion/train-labels-idx1-ubyte").write_bytes(
        struct.pack(">HBBI", 0, 8, 1, count) + bytes(number % 10 for number in range(count)))
    (folder / "text").write_text("".join(noise.choices(string.printable[:65], k=200_000)))


def run(command: list, library: pathlib.Path) -> dict:
    """Returns the last JSON that the command prints. Other text may precede it in the line.

    A command without JSON prints samples/s for each epoch: returns the median, without the first.
    """
    process = subprocess.Popen([*DIES_WITH_US, *map(str, command)], stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                               start_new_session=True, env={**os.environ, "OMP_NUM_THREADS": "1",
                                    "PYTHONPATH": str(ROOT / "python"),
                                    "DDPRUN_CPU_LIBRARY": str(library)})
    try:
        output, _ = process.communicate(timeout=PATIENCE)
    except BaseException:  # SIGTERM makes a launcher end its workers, too
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
        raise
    lines = [line[line.index('{"'):] for line in output.splitlines() if '{"' in line]
    rates = [float(before or after) for before, after
             in re.findall(r"(\d+) samples/s|samples/s (\d+)", output)][1:]
    if process.returncode != 0 or not (lines or rates):
        raise RuntimeError(f"{' '.join(map(str, command))} ended with "
                           f"{process.returncode}:\n{output[-2000:]}")
    return (json.loads(lines[-1]) if lines
            else {"samples_per_second": statistics.median(rates), "breakdown_ms": {}})


def commands(options, case: Case, folder: str) -> dict:
    """Returns the commands by system."""
    ours, theirs = options.bin / case.program, case.script
    for program in (ours, theirs):
        if not program.exists():
            raise NotHere(f"{program} is not here")
    arguments = [option.replace(FOLDER, folder) for option in case.options]
    if case.steps:
        arguments += ["--breakdown", f"--steps={case.steps}", f"--warmup={case.warmup}"]
    torchrun = [options.python, "-m", "torch.distributed.run", "--standalone",
                f"--nproc-per-node={WORKERS}", theirs, *arguments]
    return {
        "ours": [options.bin / "ddprun", "--standalone", f"--nproc-per-node={WORKERS}", ours,
                 *arguments],
        "pytorch": torchrun, "backend": [*torchrun, "--backend=ddprun"]}


def measured(options, case: Case, folder: str) -> dict:
    systems = commands(options, case, folder)
    runs = {name: [] for name in systems}
    for number in range(options.rounds):
        for name in sorted(systems, reverse=number % 2 == 1):
            runs[name].append(run(systems[name], options.bin.parent / "lib/libddprun_cpu.so"))
    record = {"program": case.program, "about": case.about, "goal": case.backend_goal}
    for name, all_of_it in runs.items():
        phases = {phase: statistics.median(one["breakdown_ms"][phase] for one in all_of_it)
                  for phase in PHASES if phase in all_of_it[0]["breakdown_ms"]}
        rates = [one["samples_per_second"] for one in all_of_it]
        record[name] = {"samples_per_second": statistics.median(rates), "low": min(rates),
                        "high": max(rates), "ms": phases}
    return record


def rate(record: dict, system: str) -> float:
    return record[system]["samples_per_second"]


def report(records: list) -> str:
    speeds, steps = [], []
    for record in records:
        ratio, of_backend = (rate(record, one) / rate(record, "pytorch")
                             for one in ("ours", "backend"))
        goal = record["goal"]
        speeds.append([record["program"], record["about"],
                       *(figure(rate(record, one)) for one in SYSTEMS), f"{ratio:.2f}",
                       "yes" if ratio >= GOAL else "**no**", f"{of_backend:.2f}",
                       f"{goal}: {'yes' if of_backend >= goal else '**no**'}" if goal else ""])
        for system, words in SYSTEMS.items():
            ms = record[system]["ms"]
            if not ms:
                continue
            whole = sum(ms[phase] for phase in PHASES
                        if phase in ms and phase != "exposed_communication")
            steps.append([record["program"], record["about"], words, time_text(1000 * whole)]
                         + [time_text(1000 * max(ms[phase], 0)) if phase in ms else ""
                            for phase in PHASES])
    return (table(["example", "net", *(f"{words}, samples/s" for words in SYSTEMS.values()),
                   "R of C++", f">= {GOAL}", "R of the backend", "goal"], speeds) + "\n\n"
            + table(["example", "net", "in", "a step", "data", "forward", "backward",
                     "of it exposed", "optimizer"], steps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="train_digits, resnet18, chargpt")
    parser.add_argument("--bin", default=ROOT / "build/release/bin", type=pathlib.Path)
    parser.add_argument("--python", default=ROOT / ".venv/bin/python3", type=pathlib.Path,
                        help="with PyTorch")
    parser.add_argument("--rounds", default=7, type=int)
    parser.add_argument("--docs", action="store_true", help="put the tables into docs")
    parser.add_argument("--json", type=pathlib.Path, help="where every figure goes")
    parser.add_argument("--smoke", action="store_true")
    options = parser.parse_args()
    programs = list(dict.fromkeys(case.program for case in CASES))
    for name in options.names:
        if name not in programs:
            parser.error(f"'{name}' is none of {', '.join(programs)}")
    if options.smoke:
        options.rounds = 1
    records = []
    with tempfile.TemporaryDirectory() as folder:
        write_data(pathlib.Path(folder))
        for case in SMOKE if options.smoke else CASES:
            if case.program not in (options.names or programs):
                continue
            try:
                records.append(measured(options, case, folder))
            except NotHere as why:
                if options.names:
                    sys.exit(f"training.py: {why}")
                print(f"{case.program} is left out: {why}", flush=True)
                continue
            rates = ", ".join(f"{words} {rate(records[-1], system):.5g}"
                              for system, words in SYSTEMS.items())
            print(f"{case.program}, {case.about}: {rates} samples/s", flush=True)
    if not records:
        sys.exit("training.py: nothing is here that could be measured")
    text, about = report(records), facts(options.python)
    print("\n" + text)
    page = ROOT / "docs/measurements/training.md"
    if options.docs:
        into_docs(text, about, page, "training")
    elif options.smoke:
        with tempfile.TemporaryDirectory() as folder:
            copy = pathlib.Path(folder) / page.name
            copy.write_text(page.read_text())
            into_docs(text, about, copy, "training")
    if options.json:
        figures = {**about, "rounds": options.rounds, "records": records}
        options.json.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
