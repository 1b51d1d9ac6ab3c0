"""Runs a function on the workers of a job, from a script or a notebook."""

from __future__ import annotations

import ctypes
import json
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import sysconfig
import tempfile
from typing import Any, Callable, Optional, Union

from ddprun._options import to_words
from ddprun._program import find_program

# Their results stay on other nodes.
_REFUSED = ("hosts", "hostfile", "nnodes", "rdzv_endpoint", "master_addr")
CALL_FILE = "call"
_REPORT_FILE = "report.json"
_PR_SET_PDEATHSIG = 1


class LaunchError(RuntimeError):
    """The job has failed without an exception of the function, for example by a signal.

    Attributes
    ----------
    exit_code : int
        The exit code of ddprun (``docs/reference/exit_codes.md``).
    report : dict
        What ``--report-file`` has; empty if the job did not start.
    """

    def __init__(self, text: str, exit_code: int, report: dict[str, Any]) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.report = report


class RemoteTraceback(Exception):
    """The traceback of an exception of a worker, as text. It is the exception's cause."""

    def __str__(self) -> str:
        return f'\n"""\n{self.args[0]}"""'


def _pickler() -> Any:
    """Returns the module that pickles: cloudpickle, if it is there."""
    try:
        import cloudpickle
    except ModuleNotFoundError:
        return pickle
    return cloudpickle


def result_file(folder: str, generation: int, rank: int) -> pathlib.Path:
    """Returns where a rank of a generation writes whether it succeeded, and its result."""
    return pathlib.Path(folder) / f"result-{generation}-{rank}"


def launch(function: Callable[..., Any], *args: Any, nproc_per_node: Union[int, str] = 1,
           max_restarts: int = 0, hosts: Optional[str] = None, **options: Any) -> list[Any]:
    """Runs ``function(*args)`` on each worker of a new job of this host, and waits for its end.

    The workers are new processes with this python, in the environment of ddprun's workers. Output
    appears where that of this process appears. Ctrl-C ends the job.

    Parameters
    ----------
    function
        A function of a module. With cloudpickle installed any function, also of a notebook.
    *args
        Its arguments; they are pickled.
    nproc_per_node
        The number of workers, or ``"gpu"``, ``"cpu"``, ``"auto"``.
    max_restarts
        How often all workers are started again after a failure.
    hosts
        Refused: results of other hosts are not brought back. Start a script with
        ``ddprun --hosts`` there.
    **options
        Other options of ddprun, with ``_`` for ``-``: ``hang_timeout=600``, ``quiet=True``,
        ``env=["A=1", "B=2"]``.

    Returns
    -------
    list
        The results, by rank. None for a worker that has left by ``sys.exit(0)``.

    Raises
    ------
    Exception
        The exception of the first worker that failed. Its cause has the traceback.
    LaunchError
        A worker failed without an exception, or the job could not start.
    ValueError
        The function cannot be sent, or an option is refused.
    """
    for name, value in {"hosts": hosts, **options}.items():
        if name in _REFUSED and value is not None:
            raise ValueError(f"launch: {name} is refused: results of other hosts are not brought "
                             "back (start a script with ddprun)")
    with tempfile.TemporaryDirectory(prefix="ddprun-launch-") as folder:
        _write_call(pathlib.Path(folder) / CALL_FILE, function, args)
        report_file = os.fspath(options.pop("report_file", os.path.join(folder, _REPORT_FILE)))
        words = to_words({"standalone": True, "nproc_per_node": nproc_per_node,
                          "max_restarts": max_restarts, "report_file": report_file, **options})
        code = _run([find_program(), *words, "-m", "ddprun._launched", folder])
        report = _read_report(report_file)
        if code != 0:
            _raise_first_failure(folder, report, code)
        return _results(folder)


def _write_call(file: pathlib.Path, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    use = _pickler()
    name = getattr(function, "__qualname__", "")
    if use is pickle and (getattr(function, "__module__", "") == "__main__" or "<" in name):
        raise ValueError(f"launch: {name} is a function of __main__, or within another one, and "
                         "cannot be sent (pip install cloudpickle, or move it into a module)")
    with file.open("wb") as stream:
        # The worker needs the path to load the call, and pickles its result in the same way.
        pickle.dump((sys.path, use.__name__), stream)
        stream.write(use.dumps((function, args)))


def _environment() -> dict[str, str]:
    """Returns the environment of ddprun: its workers use this python and this package."""
    environment = {**os.environ, "PYTHON_EXEC": sys.executable}
    packages = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if packages not in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib")):
        known = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = packages + (os.pathsep + known if known else "")
    return environment


def _end_with_parent() -> Callable[[], None]:
    """Returns what a child calls so that it gets SIGTERM when the thread that waits for it ends.

    Else the job would go on after ``kill -9`` of this process, or of a notebook's kernel."""
    prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up before the fork
    return lambda: None if prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM)) == 0 else os._exit(71)


def _run(command: list[str]) -> int:
    """Runs ddprun. Returns its exit code."""
    # A notebook shows what is written to sys.stdout, and not what goes to the descriptor.
    copied = sys.stdout is not sys.__stdout__
    process = subprocess.Popen(
        command, env=_environment(), text=True, errors="replace", stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if copied else None, stderr=subprocess.STDOUT if copied else None,
        start_new_session=True,  # else a terminal's Ctrl-C comes to it twice
        preexec_fn=_end_with_parent())
    try:
        if process.stdout is not None:
            for line in process.stdout:
                sys.stdout.write(line)
        return process.wait()
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        process.wait()
        raise
    finally:
        if process.poll() is None:
            process.kill()  # the other guards of ddprun then end all workers
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _read_report(file: str) -> dict[str, Any]:
    try:
        with open(file, encoding="utf-8") as stream:
            report = json.load(stream)
    except (OSError, ValueError):
        return {}
    return report if isinstance(report, dict) else {}


def _last_generation(folder: str) -> int:
    found = [int(file.name.split("-")[1]) for file in pathlib.Path(folder).glob("result-*-*")]
    return max(found, default=0)


def _results(folder: str) -> list[Any]:
    generation = _last_generation(folder)
    results: list[Any] = []
    while (file := result_file(folder, generation, len(results))).exists():
        results.append(pickle.loads(file.read_bytes())[1])
    return results


def _raise_first_failure(folder: str, report: dict[str, Any], code: int) -> None:
    failed = report.get("failed_generations") or [{}]
    generation = int(failed[-1].get("generation", 0))
    for first in failed[-1].get("first", []):
        file = result_file(folder, generation, int(first.get("rank", -1)))
        if file.exists():
            succeeded, value = pickle.loads(file.read_bytes())
            if not succeeded:
                error, text = value
                raise error from RemoteTraceback(f"rank {first['rank']}:\n{text}")
    what = report.get("what") or "the job did not start"
    raise LaunchError(f"launch: {what} (ddprun ended with exit code {code})", code, report)
