"""Runs a function on the workers of a job, from a script or a notebook."""

from __future__ import annotations

import json
import os
import pathlib
import pickle
import signal
import site
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
_START_FAILED = 64  # docs/reference/exit_codes.md


class LaunchError(RuntimeError):
    """The job has failed for another reason than an exception of the function.

    Attributes
    ----------
    exit_code : int
        The exit code of ddprun (``docs/reference/exit_codes.md``).
    report : dict
        The report of ``--report-file``; empty if the job did not start.
    exceptions : dict
        The exceptions of the last generation, by rank.
    """

    def __init__(self, text: str, exit_code: int, report: dict[str, Any],
                 exceptions: dict[int, BaseException]) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.report = report
        self.exceptions = exceptions


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
        A worker failed without an exception, the job was stopped, or it could not start.
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
        if os.path.isfile(report_file):
            os.remove(report_file)  # else that of an earlier job would be read if this one fails
        words = to_words({"standalone": True, "nproc_per_node": nproc_per_node,
                          "max_restarts": max_restarts, "report_file": report_file, **options})
        code = _run([find_program(), *words, "-m", "ddprun._launched", folder])
        report = _read_report(report_file)
        if code != 0:
            _raise_failure(folder, report, code)
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
    if not _every_python_has(packages):
        known = environment.get("PYTHONPATH")
        environment["PYTHONPATH"] = packages + (os.pathsep + known if known else "")
    return environment


def _every_python_has(folder: str) -> bool:
    """Returns whether each python of this installation looks for packages in the folder.

    PYTHONPATH would put all of the folder's packages before the standard library.
    """
    known = [sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        known.append(site.getusersitepackages())
    return os.path.realpath(folder) in map(os.path.realpath, known)


def _end_with_parent() -> Callable[[], None]:
    """Returns a function for the child, by which it gets SIGTERM when the waiting thread ends.

    Else the job would go on after ``kill -9`` of this process, or of a notebook's kernel. Other
    threads may hold locks at the fork, so the function only makes system calls.
    """
    import ctypes

    prctl = ctypes.CDLL(None, use_errno=True).prctl  # looked up before the fork
    parent, number = os.getpid(), int(signal.SIGTERM)

    def in_child() -> None:
        # A parent that ended before the call sends no signal.
        if prctl(_PR_SET_PDEATHSIG, number) != 0 or os.getppid() != parent:
            os._exit(_START_FAILED)

    return in_child


def _run(command: list[str]) -> int:
    """Runs ddprun. Returns its exit code."""
    # A notebook shows what is written to sys.stdout, and not what goes to the descriptor.
    copied = sys.stdout is not sys.__stdout__
    sys.stdout.flush()  # earlier lines come first
    sys.stderr.flush()
    process = subprocess.Popen(
        command, env=_environment(), encoding="utf-8", errors="replace", stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if copied else None, stderr=subprocess.STDOUT if copied else None,
        start_new_session=True,  # else a terminal's Ctrl-C comes to it twice
        preexec_fn=_end_with_parent())
    try:
        return _end_of(process)
    except KeyboardInterrupt:
        process.send_signal(signal.SIGINT)
        _end_of(process)
        raise
    finally:
        if process.poll() is None:
            process.kill()  # the other guards of ddprun then end all workers
            process.wait()
        if process.stdout is not None:
            process.stdout.close()


def _end_of(process: subprocess.Popen[str]) -> int:
    """Copies the process's output to its end. Returns the exit code."""
    if process.stdout is not None:
        for line in process.stdout:
            sys.stdout.write(line)
    return process.wait()


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


def _exceptions(folder: str, generation: int) -> dict[int, tuple[BaseException, str]]:
    """Returns the exceptions of a generation with their tracebacks, by rank."""
    found = {}
    for file in pathlib.Path(folder).glob(f"result-{generation}-*"):
        if file.suffix:  # a result that is not complete
            continue
        succeeded, value = pickle.loads(file.read_bytes())
        if not succeeded:
            found[int(file.name.split("-")[2])] = value
    return dict(sorted(found.items()))


def _raise_failure(folder: str, report: dict[str, Any], code: int) -> None:
    """Raises the exception that has ended the job, else a LaunchError."""
    ended = report.get("state") == "ended"
    if ended and report.get("exit_code_of") == "worker":
        failed = report["failed_generations"][-1]
        exceptions = _exceptions(folder, int(failed["generation"]))
        for first in failed["first"]:
            rank = first.get("rank")
            if rank in exceptions:
                error, text = exceptions[rank]
                raise error from RemoteTraceback(f"rank {rank}:\n{text}")
    what = (report.get("what") if ended else
            "ddprun was killed while the job ran" if report else "the job did not start")
    exceptions = _exceptions(folder, _last_generation(folder))
    raise LaunchError(f"launch: {what} (ddprun ended with exit code {code})", code, report,
                      {rank: error for rank, (error, _) in exceptions.items()})
