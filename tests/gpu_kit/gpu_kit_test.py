"""Packs a small GPU kit, unpacks it elsewhere and runs it: gpu_kit_test.py SOURCE_DIR BIN_DIR

The sample tries a probe and a comparison with Python on the CPU. The whole (DDPRUN_TEST_WHOLE)
tries all parts: on a machine without a GPU every part says so. The report has both forms. A kit for
another PyTorch reports at once that it does not fit. A part that hangs does not prevent the report.
The probe's comparisons hold on the CPU.
"""
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile

WHOLE = "DDPRUN_TEST_WHOLE" in os.environ
PROGRAMS = "ddprun,nccl_real_test,gpu_probe" if WHOLE else "ddprun,gpu_probe"


def run_kit(kit, out, *options, python=sys.executable):
    done = subprocess.run([kit / "run.sh", "--out", out, *options], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300,
                          check=False, env=os.environ | {"PYTHON": str(python)})
    report = json.loads((out / "report.json").read_text())
    return done, report, (out / "report.md").read_text()


def part(report, name):
    [found] = [one for one in report["parts"] if one["name"] == name]
    return found


def check_all_parts(kit, work):
    done, report, page = run_kit(kit, work / "plain")
    assert page.startswith(f"# GPU kit: {report['verdict']}\n"), page[:200]
    if report["found"]["gpu"]:
        return
    assert part(report, "NCCL is loaded")["status"] == "passed", done.stdout
    for name in ("SyncBatchNorm", "overhead of a step", "samples/s of resnet18"):
        assert part(report, name)["status"] == "no GPU", done.stdout
    # A part whose program is not in this small kit fails. The other parts still run.
    nccl = part(report, "conformance, nccl")
    assert "is not in this kit" in nccl["found"][0], done.stdout
    assert done.returncode == 1 and report["parts"][-1]["name"].startswith(
        "conformance, cpu"), done.stdout
    print("without a GPU: every part says so, and a part that fails does not end the rest")


def main():
    source, binaries = (pathlib.Path(word).resolve() for word in sys.argv[1:3])
    with tempfile.TemporaryDirectory() as folder:
        work = pathlib.Path(folder)
        archive = work / "kit.tar.xz"
        subprocess.run([source / "scripts/gpu-kit", "--no-build", "--build", binaries.parent,
                        "--programs", PROGRAMS, "--nccl", "none", "--out", archive], check=True)
        with tarfile.open(archive) as packed:
            packed.extractall(work)
        kit = work / "ddprun-gpu-kit"

        names = ["SyncBatchNorm", "DDP equality with PyTorch's, 2 ranks"]
        if WHOLE:
            check_all_parts(kit, work)
            names += ["a pass that went wrong", "overhead of a step", "small calls",
                      "checkpoints with the generators of CUDA"]
        done, report, page = run_kit(kit, work / "cpu", "--cpu",
                                     *[f"--part={name}" for name in names])
        # NCCL older than 2.30 allows one rank per GPU. Then two ranks need two GPUs, or no GPU.
        statuses = {one["name"]: one["status"] for one in report["parts"]}
        of_two_ranks = statuses.pop("DDP equality with PyTorch's, 2 ranks")
        told = done.stdout + page
        has_gpu = bool(report["found"]["gpu"])
        assert of_two_ranks == "passed" or (has_gpu and of_two_ranks == "left out"), told
        assert page.startswith(f"# GPU kit: {report['verdict']}\n"), page[:200]
        assert "| GPU |" in page and "| C++ ABI" in page, page
        assert done.returncode == 0 and set(statuses.values()) == {"passed"}, told
        assert len(statuses) == len(names) - 1, told
        print("the probe's comparisons hold:", done.stdout)

        probe = kit / "bin/gpu_probe"
        probe.rename(work / "gpu_probe")
        probe.write_text("#!/bin/sh\ntrap '' TERM\nsleep 100\n")
        probe.chmod(0o755)
        done, report, page = run_kit(kit, work / "hang", "--cpu", "--limit=2",
                                     "--part=SyncBatchNorm", "--part=overhead of a step")
        assert [one["status"]
                for one in report["parts"]] == ["timeout"] * 2 and done.returncode == 1, done.stdout
        (work / "gpu_probe").replace(probe)
        print("parts that hang are ended, and both files are there")

        done, report, page = run_kit(kit, work / "nothing", python=work / "no-python")
        assert (done.returncode != 0 and report["verdict"] == "not run"
                and "PYTHON" in page), (done.stdout, page)

        facts = json.loads((kit / "kit.json").read_text())
        (kit / "kit.json").write_text(json.dumps(facts | {"torch": "1.2.3", "cxx11_abi": False}))
        done, report, page = run_kit(kit, work / "unfit")
        assert done.returncode == 3 and report["verdict"] == "does not fit", done.stdout
        assert ("do not fit this machine: PyTorch" in page.split("| found")[0]
                and "_GLIBCXX_USE_CXX11_ABI" in page), page
        assert {one["status"] for one in report["parts"]} == {"does not fit"}, done.stdout
        print("a kit for another PyTorch says so at once")


main()
