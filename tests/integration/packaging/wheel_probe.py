"""The program that wheel_test.py runs under a nearly empty root: argv[1] is the wheel, argv[2]
its version.

Installs the wheel and uses its programs: a job of two workers, whose script imports the package,
and a job of two nodes that meet at ddp-rendezvous.
"""
import os
import pathlib
import re
import shutil
import subprocess
import sys

PATIENCE = 120.0  # seconds for each program

WORKER = """
import ddprun, os, sys
name = "{}/{} {}".format(os.environ["RANK"], os.environ["WORLD_SIZE"], sys.prefix)
sys.stdout.write(name + "\\n")
"""


def output_of(*command: str) -> str:
    result = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            timeout=PATIENCE)
    assert result.returncode == 0, (command, result)
    return result.stdout


def check_root() -> None:
    for absent in ("/usr/include", "/usr/bin/gcc", "/bin/sh", "/usr/bin/python3-config"):
        assert not os.path.exists(absent), absent
    strange = [str(file) for folder in ("/usr/lib", "/lib", "/usr/local")
               for file in pathlib.Path(folder).rglob("*")
               if re.search(r"boost|fmt|spdlog|hwloc|\.a$", file.name)
               and "python" not in str(file)]
    assert not strange, strange


def main() -> None:
    wheel, version = sys.argv[1:]
    check_root()
    output_of(sys.executable, "-m", "pip", "install", "--quiet", "--no-index", wheel)
    scripts = pathlib.Path(sys.prefix) / "bin"
    for name in ("ddprun", "ddprun-bench", "ddp-rendezvous", "ddp-store"):
        assert shutil.which(name) == str(scripts / name), name
        assert version in output_of(name, "--version"), name
    assert version in output_of(sys.executable, "-m", "ddprun", "--version")
    assert output_of(sys.executable, "-c",
                     "import ddprun; print(ddprun.__version__)") == f"{version}\n"

    script = pathlib.Path(sys.prefix) / "worker.py"
    script.write_text(WORKER)
    both = {f"[rank {rank}] {rank}/2 {sys.prefix}" for rank in (0, 1)}
    assert set(output_of("ddprun", "--nproc-per-node=2", str(script)).splitlines()) == both

    # Two nodes on the loopback address. They use a key, for which OpenSSL is loaded.
    os.environ["DDPRUN_RDZV_KEY"] = "a-key-of-sixteen-letters"
    service = subprocess.Popen(["ddp-rendezvous", "--listen", "127.0.0.1:0"],
                               stdout=subprocess.PIPE, text=True)
    try:
        port = re.search(r"listening on 127\.0\.0\.1:(\d+)", service.stdout.readline())[1]
        node = ["ddprun", "--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=probe",
                str(script)]
        nodes = [subprocess.Popen(node, stdout=subprocess.PIPE, text=True) for _ in range(2)]
        said = {line for one in nodes for line in one.communicate(timeout=PATIENCE)[0].splitlines()}
        assert [one.returncode for one in nodes] == [0, 0] and said == both, said
    finally:
        service.terminate()
        service.wait(timeout=PATIENCE)
    print(f"ddprun {version} runs where there is nothing but a Python, as the "
          f"{sys.prefix}/bin/ddprun of pip")


main()
