#!/usr/bin/env python3
"""Runs the parts of the GPU kit one after the other. run.sh, in the same folder, calls it.

Each part has a timeout, and all of them have one deadline. After each part report.json and
report.md are written again, so that they exist whatever comes next. Needs only the standard
library.
"""
import argparse
import glob
import html
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
SECONDS = 500  # for all parts together
NO_GPU = "no GPU"
ASK_TORCH = """
import json, sys, torch, platform
facts = {"torch": torch.__version__, "torch_dir": torch.__path__[0],
         "torch_cuda": torch.version.cuda,
         "cxx11_abi": bool(torch._C._GLIBCXX_USE_CXX11_ABI), "gpus": [], "nccl_of_torch": None}
if torch.cuda.is_available():
    facts["gpus"] = [{"name": torch.cuda.get_device_name(i),
                      "arch": "%d%d" % torch.cuda.get_device_capability(i)}
                     for i in range(torch.cuda.device_count())]
    facts["nccl_of_torch"] = ".".join(map(str, torch.cuda.nccl.version()))
print(json.dumps(facts))
"""


class Outcome:
    """What a command ended with. code None: its time was over."""

    def __init__(self, code, output):
        self.code, self.output = code, output

    def last_json(self):
        for line in reversed(self.output.splitlines()):
            at = line.find('{"')
            if at >= 0:
                try:
                    return json.loads(line[at:])
                except ValueError:
                    continue
        return None


def run(command, seconds, environment):
    """Runs a command in a session of its own. After the timeout it kills all its processes."""
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen([str(word) for word in command], stdin=subprocess.DEVNULL,
                                       stdout=log, stderr=log, env=environment,
                                       start_new_session=True)
        except OSError as error:
            return Outcome(127, f"{command[0]}: {error}")
        code = None
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            process.terminate()  # so that a launcher ends its workers
            try:
                process.wait(3)
            except subprocess.TimeoutExpired:
                pass
        finally:
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
        log.seek(0)
        return Outcome(code, log.read().decode(errors="replace"))


def ask(command, seconds=60):
    outcome = run(command, seconds, dict(os.environ))
    return outcome.output.strip() if outcome.code == 0 else None


def version_tuple(text):
    return tuple(int(part) for part in re.findall(r"\d+", text or "")[:3])


class Machine:
    def __init__(self, kit):
        self.kit = kit
        self.driver = ask(["nvidia-smi", "--query-gpu=name,driver_version,memory.total,compute_cap",
                           "--format=csv,noheader"], 20)
        asked = run([sys.executable, "-c", ASK_TORCH], 90, dict(os.environ))
        self.torch = asked.last_json() if asked.code == 0 else None
        self.why_no_torch = (None if self.torch
                             else (asked.output.strip().splitlines() or ["no answer in 90 s"])[-1])
        self.glibc = os.confstr("CS_GNU_LIBC_VERSION").split()[-1]
        self.uses_own_nccl = False
        self.nccl = None
        if self.torch:
            self.libraries = self.library_path()
            self.nccl = self.nccl_version()

    def has_gpu(self):
        return bool(self.torch and self.torch["gpus"])

    def library_path(self):
        torch = pathlib.Path(self.torch["torch_dir"])
        folders = [str(torch / "lib"), *sorted(glob.glob(str(torch.parent / "nvidia/*/lib")))]
        arch = self.kit.get("nccl_arch")
        if (self.has_gpu() and arch and self.torch["gpus"][0]["arch"] == str(arch)
            and (HERE / "lib/libnccl.so.2").exists()):
            self.uses_own_nccl = True
            folders.insert(0, str(HERE / "lib"))
        return ":".join(folders)

    def nccl_version(self):
        for folder in self.libraries.split(":"):
            path = pathlib.Path(folder) / "libnccl.so.2"
            if path.exists():
                code = ("import ctypes; v = ctypes.c_int(); "
                        "ctypes.CDLL(%r).ncclGetVersion(ctypes.byref(v)); print(v.value)"
                        % str(path))
                outcome = run([sys.executable, "-c", code], 30, self.environment())
                if outcome.code == 0 and outcome.output.strip().isdigit():
                    number = int(outcome.output)
                    return f"{number // 10000}.{number // 100 % 100}.{number % 100}"
        return None

    def environment(self, **more):
        environment = {k: v for k, v in os.environ.items()
                       if not re.match(r"(PET|DDPRUN|TORCHELASTIC)_", k)}
        for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
            environment.pop(name, None)
        environment.update(LD_LIBRARY_PATH=self.libraries, NCCL_MULTI_RANK_GPU_ENABLE="1",
                           OMP_NUM_THREADS="2", PYTHON_EXEC=sys.executable, **more)
        return environment

    def why_unfit(self):
        """Returns the reasons why the packed programs cannot run here."""
        if not self.torch:
            return [f"{sys.executable} has no PyTorch: {self.why_no_torch}"]
        reasons, kit, torch = [], self.kit, self.torch
        if version_tuple(torch["torch"]) != version_tuple(kit["torch"]):
            reasons.append(f"PyTorch {torch['torch']} is here, the programs were built with "
                           f"{kit['torch']}: LibTorch's C++ interface changes with each version")
        if torch["cxx11_abi"] != kit["cxx11_abi"]:
            reasons.append("PyTorch's C++ ABI is "
                           f"_GLIBCXX_USE_CXX11_ABI={int(torch['cxx11_abi'])}, the programs' is "
                           f"{int(kit['cxx11_abi'])}")
        if version_tuple(torch["torch_cuda"])[:1] != version_tuple(kit["cuda"])[:1]:
            reasons.append(f"PyTorch is built with CUDA {torch['torch_cuda']}, the programs with "
                           f"CUDA {kit['cuda']}")
        if version_tuple(self.glibc) < version_tuple(kit["glibc"]):
            reasons.append(f"glibc {self.glibc} is here, the programs need {kit['glibc']}")
        missing = set()
        for program in sorted((HERE / "bin").iterdir()):
            listing = run(["ldd", program], 30, self.environment()).output
            missing |= set(re.findall(r"(\S+) => not found", listing))
            missing |= set(re.findall(r"version `(\S+)' not found", listing))
        if missing:
            reasons.append("libraries are missing: " + ", ".join(sorted(missing)))
        return reasons


class Kit:
    def __init__(self, options):
        self.options = options
        self.out = options.out
        self.facts = json.loads((HERE / "kit.json").read_text())
        self.deadline = time.monotonic() + options.seconds
        self.machine = Machine(self.facts)
        self.unfit = self.machine.why_unfit()
        self.parts = []
        self.work = pathlib.Path(tempfile.mkdtemp(prefix="gpu-kit-"))
        self.on_cpu = options.cpu and not self.machine.has_gpu()

    # --- the report ---
    def verdict(self):
        if self.unfit:
            return "does not fit"
        statuses = {part["status"] for part in self.parts}
        if "failed" in statuses or "timeout" in statuses:
            return "failed"
        if "no time left" in statuses:
            return "incomplete"
        return NO_GPU if not self.machine.has_gpu() else "passed"

    def write(self):
        machine = self.machine
        found = {"gpu": machine.torch["gpus"] if machine.torch else [], "driver": machine.driver,
                 "python": sys.version.split()[0], "pytorch": machine.torch, "glibc": machine.glibc,
                 "nccl": machine.nccl, "packed_nccl_used": machine.uses_own_nccl}
        record = {"verdict": self.verdict(), "does_not_fit": self.unfit, "found": found,
                  "kit": self.facts, "parts": self.parts}
        self.replace("report.json", json.dumps(record, indent=1) + "\n")
        self.replace("report.md", self.page())

    def replace(self, name, text):
        temporary = self.out / (name + ".new")
        temporary.write_text(text)
        temporary.replace(self.out / name)

    def page(self):
        machine, torch = self.machine, self.machine.torch or {}
        lines = [f"# GPU kit: {self.verdict()}", ""]
        lines += [f"**These programs do not fit this machine: {reason}.**\n"
                  for reason in self.unfit]
        fits = "does not fit" if self.unfit else "fits"
        lines += ["| found | |", "| --- | --- |",
                  f"| GPU | {', '.join(gpu['name'] for gpu in torch.get('gpus', [])) or NO_GPU} |",
                  "| driver (name, driver, memory, compute capability) | "
                  f"{machine.driver or 'nvidia-smi does not answer'} |",
                  f"| PyTorch | {torch.get('torch', 'none')}, CUDA {torch.get('torch_cuda')}; kit: "
                  f"{self.facts['torch']}, CUDA {self.facts['cuda']} |",
                  f"| Python | {sys.version.split()[0]} ({sys.executable}) |",
                  f"| C++ ABI (_GLIBCXX_USE_CXX11_ABI) | {torch.get('cxx11_abi')}; kit: "
                  f"{self.facts['cxx11_abi']}: {fits} |",
                  f"| glibc | {machine.glibc}; kit needs {self.facts['glibc']} |", "| NCCL | "
                  f"{machine.nccl}, {'of the kit' if machine.uses_own_nccl else 'of PyTorch'} |",
                  f"| kit | {self.facts['commit']}, {self.facts['made']} |", "",
                  "| part | result | seconds | found |", "| --- | --- | --- | --- |"]
        for part in self.parts:
            found = "; ".join(part["found"]).replace("|", "/")
            lines.append(f"| {part['name']} | {part['status']} | {part['seconds']:.1f} | "
                         f"{html.escape(found, quote=False)} |")
        tests = [(part["name"], test) for part in self.parts for test in part.get("tests", [])]
        if tests:
            lines += ["", "| test | result | |", "| --- | --- | --- |"]
            lines += [f"| {test['name']} | {test['status']} | {test['why'].replace('|', '/')} |"
                      for _, test in tests]
        for part in self.parts:
            if part["status"] in ("failed", "timeout") and part.get("output"):
                lines += ["", f"## {part['name']}: {part['status']}", "", "```", part["output"],
                          "```"]
        return "\n".join(lines) + "\n"

    # --- parts ---
    def part(self, name, seconds, body, needs_gpu=True):
        if self.options.part and name not in self.options.part:
            return
        record = {"name": name, "status": "failed", "seconds": 0.0, "found": []}
        left = self.deadline - time.monotonic()
        start = time.monotonic()
        if self.unfit:
            record.update(status="does not fit")
        elif needs_gpu and not self.machine.has_gpu() and not self.on_cpu:
            record.update(status=NO_GPU)
        elif left < 5:
            record.update(status="no time left")
        else:
            try:
                body(record, min(seconds, left, self.options.limit))
            except Exception as error:  # a part that cannot run must not end the others
                record.update(status="failed", found=[f"{type(error).__name__}: {error}"])
        record["seconds"] = time.monotonic() - start
        self.parts.append(record)
        print(f"{record['name']}: {record['status']}  {'; '.join(record['found'])}", flush=True)
        self.write()

    def finish(self, record, outcome, found=()):
        record["found"] += list(found)
        record["output"] = outcome.output[-6000:]
        (self.out / (re.sub(r"\W+", "-", record["name"]) + ".log")).write_text(outcome.output)
        if outcome.code is None:
            record["status"] = "timeout"
        else:
            record["status"] = "passed" if outcome.code == 0 else "failed"
            if outcome.code:
                record["found"].append(f"exit code {outcome.code}")

    def program(self, name):
        path = HERE / "bin" / name
        if not path.exists():
            raise FileNotFoundError(f"bin/{name} is not in this kit")
        return path

    def gtest(self, program, pattern="*"):
        """A part that is a GoogleTest program: each of its tests is told."""
        def body(record, seconds):
            results = self.work / "tests.json"
            results.unlink(missing_ok=True)
            outcome = run([self.program(program), f"--gtest_filter={pattern}",
                           f"--gtest_output=json:{results}"], seconds, self.machine.environment())
            self.finish(record, outcome)
            record["tests"] = tests_of(outcome.output)
            counts = {}
            for test in record["tests"]:
                counts[test["status"]] = counts.get(test["status"], 0) + 1
            record["found"] = [f"{count} {status}"
                               for status, count in sorted(counts.items())] + record["found"]
            if record["status"] == "passed" and set(counts) == {NO_GPU}:
                record["status"] = NO_GPU
            elif record["status"] == "passed" and not record["tests"]:
                record.update(status="failed", found=["it has no such tests"])
        return body

    def ranks_that_fit(self, most=2):
        """Several ranks share a GPU with NCCL 2.30 and newer; on the CPU any number runs."""
        torch = self.machine.torch
        if self.on_cpu or version_tuple(self.machine.nccl) >= (2, 30):
            return most
        return min(most, max(len(torch["gpus"]), 1))

    def ddprun(self, ranks, *command):
        return [self.program("ddprun"), "--standalone", f"--nproc-per-node={ranks}", *command]

    def torchrun(self, ranks, *command):
        return [sys.executable, "-m", "torch.distributed.run", "--standalone",
                f"--nproc-per-node={ranks}", *command]

    def probe(self, mode, *arguments, **variables):
        def body(record, seconds):
            ranks = self.ranks_that_fit()
            outcome = run(self.ddprun(ranks, self.program("gpu_probe"), mode, *arguments), seconds,
                          self.machine.environment(**variables))
            found = outcome.last_json() or {}
            self.finish(record, outcome, [f"{key} {short(value)}" for key, value in found.items()])
            record["data"] = found
            if found and found.get("device", "").startswith("cpu") and not self.on_cpu:
                record.update(status="failed", found=["it ran on the CPU although there is a GPU"])
        return body

    def equality(self, ranks):
        def body(record, seconds):
            if ranks > self.ranks_that_fit(ranks):
                record.update(status="left out", found=[f"{ranks} ranks on one GPU need NCCL 2.30"])
                return
            ours, theirs = self.work / f"ours{ranks}.pt", self.work / f"theirs{ranks}.pt"
            deadline = time.monotonic() + seconds
            for command in (self.ddprun(ranks, self.program("gpu_probe"), "ddp", ours),
                            self.torchrun(ranks, HERE / "ddp_twin.py", theirs)):
                outcome = run(command, max(1, deadline - time.monotonic()),
                              self.machine.environment())
                self.finish(record, outcome)
                if record["status"] != "passed":
                    return
            outcome = run([sys.executable, HERE / "ddp_compare.py", ours, theirs], 60,
                          self.machine.environment())
            found = outcome.last_json() or {}
            self.finish(record, outcome, [f"{key} {short(value)}" for key, value in found.items()])
            record["data"] = found
        return body

    def speed(self, example, *arguments):
        def body(record, seconds):
            steps = (["--breakdown", "--steps=3", "--warmup=1"] if self.on_cpu
                     else ["--breakdown", "--steps=60", "--warmup=15"])
            device = [] if self.on_cpu else ["--device=cuda"]
            rates = {}
            for name, command in (
                    ("C++ under ddprun",
                     self.ddprun(1, self.program(f"gpu_{example}"), *arguments, *steps)),
                    ("Python under torchrun",
                     self.torchrun(1, HERE / f"examples/{example}.py", *arguments, *steps,
                                   *device))):
                outcome = run(command, seconds / 2, self.machine.environment())
                found = outcome.last_json() or {}
                self.finish(record, outcome)
                if record["status"] != "passed" or "samples_per_second" not in found:
                    record.update(
                        status=record["status"] if record["status"] != "passed" else "failed")
                    record["found"].append(f"{name} gave no figure")
                    return
                rates[name] = found["samples_per_second"]
                record["found"].append(f"{name} {short(rates[name])} samples/s")
            record["found"].append(
                f"ratio {rates['C++ under ddprun'] / rates['Python under torchrun']:.2f}")
            record["data"] = rates
        return body

    def resumed(self, record, seconds):
        """A worker that kills itself; the job goes on from its checkpoint."""
        outcome = run([self.program("ddprun"), "--standalone", "--nproc-per-node=1",
                       "--max-restarts=1", self.program("gpu_train_digits"),
                       f"--data={HERE}/examples/data/digits", "--epochs=3",
                       f"--checkpoint-dir={self.work}/digits", "--crash-rank=0", "--crash-step=30"],
                      seconds, self.machine.environment())
        self.finish(record, outcome,
                    re.findall(r"resumed at step \d+|final accuracy \S+ %", outcome.output))
        if record["status"] == "passed" and "resumed at step" not in outcome.output:
            record.update(status="failed", found=["it did not resume"])

    def run_all(self):
        if self.unfit:
            for reason in self.unfit:
                print(f"gpu-kit: these programs do not fit this machine: {reason}", file=sys.stderr,
                      flush=True)
        self.write()
        text = f"--data={HERE}/examples/data/text.txt"
        digits = f"--data={HERE}/examples/data/digits"
        self.part("NCCL is loaded", 40, self.gtest("nccl_real_test"), needs_gpu=False)
        self.part("conformance, nccl", 110, self.gtest("gpu_conformance_test", "*/nccl*"),
                  needs_gpu=False)
        self.part("aborts, splits, graphs", 90, self.gtest("nccl_gpu_test"), needs_gpu=False)
        self.part("conformance, ranks as processes", 100,
                  self.gtest("gpu_conformance_test", "*/processes*"), needs_gpu=False)
        self.part("DDP equality with PyTorch's, 1 rank", 120, self.equality(1))
        self.part("DDP equality with PyTorch's, 2 ranks", 120, self.equality(2))
        self.part("SyncBatchNorm", 40, self.probe("sync_batch_norm"))
        self.part("a pass that went wrong", 40, self.probe("late_checks"))
        self.part("checkpoints with the generators of CUDA", 40,
                  self.probe("checkpoint", self.work / "checkpoint"))
        self.part("a killed worker resumes", 60, self.resumed)
        self.part("overhead of a step", 50, self.probe("overhead"))
        # A non-blocking communicator of NCCL starts a thread for each launch.
        self.part("small calls", 30, self.probe("calls"))
        self.part("small calls, blocking", 30, self.probe("calls", NCCL_COMM_BLOCKING="1"))
        self.part("samples/s of resnet18", 80, self.speed(
            "resnet18", "--batch-norm=plain", digits, "--width=4" if self.on_cpu else "--width=64"))
        self.part("samples/s of chargpt", 80, self.speed("chargpt", text))
        self.part("conformance, cpu backend with a GPU's tensors", 60,
                  self.gtest("gpu_conformance_test", "*/cpu*"), needs_gpu=False)


def short(value):
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def tests_of(output):
    """Returns the tests of a GoogleTest program's output, with what skipped them."""
    tests, name, said = [], None, []
    for line in output.splitlines():
        if match := re.match(r"\[ RUN      \] (\S+)", line):
            name, said = match[1], []
        elif match := re.match(r"\[ +(OK|FAILED|SKIPPED) +\] (\S+?),? .*\(\d+ ms\)", line):
            if match[2] != name:
                continue  # the summary
            text = re.sub(r"^\S+:\d+: (Skipped|Failure) ?", "", " ".join(said))
            status = {"OK": "passed", "FAILED": "failed", "SKIPPED": "skipped"}[match[1]]
            if status == "skipped" and "there is no GPU here" in text:
                status = NO_GPU
            tests.append({"name": name, "status": status,
                          "why": text[-400:] if status != "passed" else ""})
            name = None
        elif name and line.strip():
            said.append(line.strip())
    if name:
        tests.append({"name": name, "status": "failed",
                      "why": "it did not end: " + " ".join(said)[-300:]})
    return tests


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--out", type=pathlib.Path, default=HERE / "results")
    parser.add_argument("--cpu", action="store_true",
                        help="without a GPU, try the trainings on the CPU")
    parser.add_argument("--part", action="append", help="this part only; may be repeated")
    parser.add_argument("--limit", type=float, default=SECONDS,
                        help="seconds for each part, at most")
    parser.add_argument("--seconds", type=float, default=SECONDS, help="for all parts")
    options = parser.parse_args()
    options.out = options.out.resolve()
    options.out.mkdir(parents=True, exist_ok=True)
    kit = Kit(options)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(124))  # the reports that were written stay
    try:
        kit.run_all()
    finally:
        shutil.rmtree(kit.work, ignore_errors=True)
    verdict = kit.verdict()
    print(f"gpu-kit: {verdict}", flush=True)
    sys.exit({"failed": 1, "incomplete": 1, "does not fit": 3}.get(verdict, 0))


if __name__ == "__main__":
    main()
