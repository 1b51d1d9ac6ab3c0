"""Tests PyTorch's own DistributedDataParallel under ddprun.

argv[1]: the folder of the programs. argv[2]: the sources. argv[3]: the number of jobs. They run
examples/ddp_digits.py. In each, one rank is killed from outside at a random moment: by turns
during the start, from the first import on, and in an epoch. Each job must succeed, with the weights
of an undisturbed run.
"""
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import tempfile
import time

sys.path.append(f"{sys.path[0]}/../../support")
import needs  # noqa: E402

PATIENCE = 120.0  # seconds for one job


def workers_of(job: str) -> dict[int, int]:
    """Returns the process ids of the job's workers by rank.

    The environment names the job. Children of a worker have the same environment, but only a
    worker leads its session."""
    found = {}
    for folder in pathlib.Path("/proc").iterdir():
        try:
            variables = dict(entry.split("=", 1)
                             for entry in (folder / "environ").read_text().split("\0")
                             if "=" in entry)
            if (folder.name.isdigit() and variables.get("TORCHELASTIC_RUN_ID") == job
                and os.getsid(int(folder.name)) == int(folder.name)):
                found[int(variables["RANK"])] = int(folder.name)
        except (OSError, UnicodeDecodeError):
            continue  # the process has ended meanwhile
    return found


def start(binaries: pathlib.Path, sources: pathlib.Path, job: str,
          work: pathlib.Path) -> subprocess.Popen:
    return subprocess.Popen(
        [binaries / "ddprun", "--nproc-per-node=2", "--max-restarts=3", f"--rdzv-id={job}",
         sources / "examples/ddp_digits.py", "--epochs=6", "--checkpoint-every=5",
         f"--checkpoint-dir={work}/{job}", f"--digest-file={work}/{job}.sha256"],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=os.environ | {"PYTHON_EXEC": sys.executable, "PYTHONWARNINGS": "ignore"})


def output_of(process: subprocess.Popen) -> str:
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, f"exit code {process.returncode}:\n{output}"
    accuracy = float(re.search(r"final accuracy ([\d.]+) %", output)[1])
    assert accuracy >= 95, output
    return output


def main() -> None:
    needs.module("torch")
    binaries, sources = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
    seed = int(os.environ.get("DDPRUN_TEST_SEED", "1"))
    print(f"replay: DDPRUN_TEST_SEED={seed}", flush=True)
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        print(output_of(start(binaries, sources, "undisturbed", work)))
        digest = (work / "undisturbed.sha256").read_text()

        resumed = 0
        for attempt in range(int(sys.argv[3])):
            job = f"killed-{seed}-{attempt}"
            process = start(binaries, sources, job, work)
            # The kill comes during the start, or a little after the end of one of the epochs
            # except the last.
            epoch = chance.choice([1, 2, 3, 4]) if attempt % 2 else 0
            before = ""
            while epoch and f"epoch {epoch:2}" not in before:
                line = process.stdout.readline()
                assert line, f"attempt {attempt} ended before its kill:\n{before}"
                before += line
            time.sleep(chance.uniform(0, 0.05 if epoch else 3))
            victim = None
            while victim is None:  # between two generations there is no victim
                assert process.poll() is None, f"attempt {attempt} ended before its kill:\n{before}"
                victim = workers_of(job).get(chance.randrange(2))
            os.kill(victim, signal.SIGKILL)
            output = before + output_of(process)
            assert f"pid {victim}) was killed by SIGKILL" in output, output
            # One restart is enough. PyTorch 2.11 itself aborts now and then while it shuts
            # down ("terminate called without an active exception"). This costs another
            # restart.
            assert re.search("succeeded after [12] of 3 restarts", output), output
            assert (work / f"{job}.sha256").read_text() == digest, (
                f"attempt {attempt}: other weights:\n{output}")
            resumed += "resumed at step" in output
            print(f"attempt {attempt}: killed in epoch {epoch + 1 if epoch else 'none'}, "
                  f"resumed: {'resumed at step' in output}", flush=True)
        assert resumed > 0, "every kill came before the first checkpoint"


main()
