"""Tests that the types of the Python package are complete and right, by mypy --strict."""
import pathlib
import subprocess
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "support"))
import needs  # noqa: E402

needs.module("mypy", ": scripts/setup --tests")
SOURCES = pathlib.Path(__file__).resolve().parent.parent.parent
with tempfile.TemporaryDirectory() as cache:
    sys.exit(subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", cache, "--config-file",
         SOURCES / "pyproject.toml", SOURCES / "python/ddprun"], check=False).returncode)
