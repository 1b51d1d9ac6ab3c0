"""The example resume_in_python: what C++ begins, Python goes on with, to the last digit.

argv: the folder of the programs, the root of the sources.
"""
import pathlib
import subprocess
import sys
import tempfile


def run(exit_code: int, *command: object) -> subprocess.CompletedProcess:
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, timeout=100)
    assert done.returncode == exit_code, done.stdout + done.stderr
    return done


def epochs_in(output: str) -> list[str]:
    return [line for line in output.splitlines() if line.startswith("epoch ")]


def main() -> None:
    binaries, source = map(pathlib.Path, sys.argv[1:])
    program, script = binaries / "resume_in_python", source / "examples/resume_in_python.py"
    with tempfile.TemporaryDirectory() as work:
        directory = pathlib.Path(work) / "run"
        refused = run(2, sys.executable, script, directory)
        assert refused.stderr.endswith(f"there is no checkpoint in {directory}\n"), refused.stderr
        cpp = run(0, program, f"--checkpoint-dir={directory}", "--epochs=5",
                  "--switch-after=2").stdout
        assert f"saved in {directory}\n" in cpp, cpp
        python = run(0, sys.executable, script, directory).stdout
        assert python.startswith(
            f"resumed after epoch 2 from {directory}/step-000000000090.pt\n"), python
        assert len(epochs_in(cpp)) == 5, cpp
        assert epochs_in(python) == epochs_in(cpp)[2:], python + cpp
        loss, accuracy = (float(epochs_in(python)[-1].split()[at]) for at in (3, 6))
        assert 0 < loss < 0.4 and accuracy > 85, python

        refused = run(2, program)
        assert refused.stderr == (
            "resume_in_python: --checkpoint-dir is required (see --help)\n"), refused.stderr
        refused = run(2, program, "--checkpoint-dir=x", "--switch-after=-1")
        assert refused.stderr.startswith("resume_in_python: --switch-after"), refused.stderr
        assert "resume_in_python --checkpoint-dir=run1" in run(0, program, "--help").stdout
        assert "--data" in run(0, sys.executable, script, "--help").stdout


if __name__ == "__main__":
    main()
