"""Runs a function on the workers of a job, from a script or a notebook."""

from __future__ import annotations

import json
import os
import pickle
import re
import signal
import site
import subprocess
import sys
import sysconfig
import tempfile
from typing import IO, Any, Callable, Optional, Sequence, Union

from ddprun import _exchange
from ddprun._exchange import PLACE_VARIABLE, SUCCEEDED, Exchange, own_addresses
from ddprun._options import to_words
from ddprun._program import find_program

# They say how agents meet that are started one by one.
_REFUSED = ("nnodes", "rdzv_endpoint", "master_addr")
_REPORT_FILE = "report.json"
_PR_SET_PDEATHSIG = 1
_START_FAILED = 64  # docs/reference/exit_codes.md
_FIRST_FAILURE = re.compile(r"(?:first failure|or, at about the same time): (rank (\d+) .*)")
_MOST_KEPT = 100  # lines


class LaunchError(RuntimeError):
    """The job has failed for another reason than an exception of the function.

    Attributes
    ----------
    exit_code : int
        The exit code of ddprun (``docs/reference/exit_codes.md``).
    report : dict
        The report of ``--report-file``; empty if the job did not start, and of a job on several
        hosts without ``report_file``.
    exceptions : dict
        The exceptions of the last generation, by rank.
    results : dict
        The pickled results of the last generation, by rank, if one of them cannot be unpickled.
    """

    def __init__(self, text: str, exit_code: int, report: dict[str, Any],
                 exceptions: dict[int, BaseException],
                 results: Optional[dict[int, bytes]] = None) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.report = report
        self.exceptions = exceptions
        self.results = results or {}


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


def launch(function: Callable[..., Any], *args: Any, nproc_per_node: Union[int, str] = 1,
           max_restarts: int = 0, hosts: Union[str, Sequence[str], None] = None,
           **options: Any) -> list[Any]:
    """Runs ``function(*args)`` on each worker of a new job, and waits for its end.

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
        Names of hosts, which ssh reaches without a password: ``["gpu0:4", "gpu1:4"]``. By default
        the workers run on this host. Other hosts need the same python and packages at the same
        paths, the folder in which this process runs, and TCP connections to this host.
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
        A worker failed without an exception, the job was stopped, or it could not start. Or a
        result cannot be unpickled here.
    ValueError
        The function cannot be sent, or an option is refused.
    """
    if not callable(function):
        raise ValueError(f"launch: {function!r} is not a function")
    for name in _REFUSED:
        if options.get(name) is not None:
            raise ValueError(f"launch: {name} is refused: it is for agents that are started one by "
                             "one (give hosts, or start a script with ddprun)")
    call = _pickled_call(function, args)
    names = hosts if isinstance(hosts, str) or hosts is None else ",".join(hosts)
    is_remote = names is not None or options.get("hostfile") is not None
    addresses = own_addresses(names, options.get("hostfile")) if is_remote else ["127.0.0.1"]
    with Exchange(call, addresses, is_remote) as exchange, \
            tempfile.TemporaryDirectory(prefix="ddprun-launch-") as folder:
        environment = {**_environment(), PLACE_VARIABLE: exchange.place}
        if is_remote:
            # ssh passes no variables on. These are named only, so that no argument has the secret.
            passed = [PLACE_VARIABLE, "PYTHON_EXEC", "PYTHONPATH"]
            given = options.pop("env", None) or []
            options["env"] = [*(name for name in passed if name in environment),
                              *([given] if isinstance(given, str) else given)]
            own: dict[str, Any] = {"hosts": names}
        else:
            own = {"standalone": True}
        # Each host writes a file of this name, so it is the caller who chooses one for the hosts.
        report_file = os.fspath(options.pop("report_file", None) or (
            "" if is_remote else os.path.join(folder, _REPORT_FILE)))
        if report_file:
            if os.path.isfile(report_file):
                os.remove(report_file)  # that of an earlier job, if this one does not start
            own["report_file"] = report_file
        words = to_words({**own, "nproc_per_node": nproc_per_node, "max_restarts": max_restarts,
                          **options})
        code, printed = _run([find_program(), *words, "-m", "ddprun._launched"], environment,
                             listens=is_remote)
        results = exchange.close()
        if code != 0:
            _raise_failure(results, _read_report(report_file), code, _printed_report(printed))
        return _loaded(_last_generation(results))


# What a worker has sent, by generation and rank (_exchange.SUCCEEDED).
_Pickled = Union[bytes, memoryview]
_Results = dict[tuple[int, int], _Pickled]


def _pickled_call(function: Callable[..., Any], args: tuple[Any, ...]) -> bytes:
    use = _pickler()
    name = getattr(function, "__qualname__", type(function).__name__)
    if use is pickle and (getattr(function, "__module__", "") == "__main__" or "<" in name):
        raise ValueError(f"launch: {name} is a function of __main__, or within another one, and "
                         "cannot be sent (pip install cloudpickle, or move it into a module)")
    try:
        call = use.dumps((function, args))
    except Exception as error:  # whatever the classes of the arguments do
        raise ValueError(f"launch: {name} or its arguments cannot be sent: {error}") from error
    # The worker needs the path to load the call, and pickles its result in the same way.
    pickled = pickle.dumps((sys.path, use.__name__, call))
    if len(pickled) > _exchange.MAX_BYTES:
        raise ValueError(f"launch: {name} and its arguments have {len(pickled)} bytes, "
                         f"{_exchange.MAX_BYTES} is the most that is sent (write them into a file, "
                         "and pass the file's name)")
    return pickled


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


def _run(command: list[str], environment: dict[str, str],
         listens: bool) -> tuple[int, list[str]]:
    """Runs ddprun. Returns its exit code and, as far as they are copied, its own last lines.

    With `listens` its errors are always copied. Then it has no status line on a terminal.
    """
    # A notebook shows what is written to sys.stdout, and not what goes to the descriptor.
    copied = sys.stdout is not sys.__stdout__
    sys.stdout.flush()  # earlier lines come first
    sys.stderr.flush()
    process = subprocess.Popen(
        command, env=environment, encoding="utf-8", errors="replace", stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE if copied else None,
        stderr=subprocess.STDOUT if copied else subprocess.PIPE if listens else None,
        start_new_session=True,  # else a terminal's Ctrl-C comes to it twice
        preexec_fn=_end_with_parent())
    printed: list[str] = []
    try:
        return _end_of(process, printed), printed
    except KeyboardInterrupt:
        for _ in range(2):  # ddprun kills the workers at the second one, and we ddprun at the third
            try:  # the second interrupt may come before the first one is passed on
                process.send_signal(signal.SIGINT)
                _end_of(process, printed)
                break
            except KeyboardInterrupt:
                pass
        raise
    finally:
        if process.poll() is None:
            process.kill()  # the other guards of ddprun then end all workers
            process.wait()
        for pipe in (process.stdout, process.stderr):
            if pipe is not None:
                pipe.close()


def _end_of(process: subprocess.Popen[str], printed: list[str]) -> int:
    """Copies the process's output to its end, and keeps ddprun's lines. Returns the exit code."""
    pipe: Optional[IO[str]] = process.stdout or process.stderr
    shown = sys.stdout if process.stdout is not None else sys.stderr
    if pipe is not None:
        for line in pipe:
            shown.write(line)
            own = _own_message(line)
            if own is not None:
                printed.append(own)
                del printed[:-_MOST_KEPT]
    return process.wait()


def _own_message(line: str) -> Optional[str]:
    """Returns the message of a line of ddprun itself, as text or JSON; None: it is a worker's."""
    if line.startswith("ddprun: "):
        return line.rstrip("\n").partition("ddprun: ")[2].removeprefix("error: ")
    if not line.startswith("{"):
        return None
    try:
        document = json.loads(line)
    except ValueError:
        return None
    message = document.get("message") if "level" in document else None
    return message if isinstance(message, str) else None


def _printed_report(printed: list[str]) -> dict[str, Any]:
    """Returns from ddprun's messages what the report of a job on this host would have."""
    firsts: list[tuple[str, int]] = []
    for message in printed:
        found = _FIRST_FAILURE.match(message)
        if found and message.startswith("first"):
            firsts.clear()  # those of an earlier generation
        if found:
            firsts.append((found[1], int(found[2])))
    if firsts:
        return {"state": "ended", "exit_code_of": "worker", "what": firsts[0][0],
                "failed_generations": [{"first": [{"rank": rank} for _, rank in firsts]}]}
    return {"state": "ended", "what": printed[-1]} if printed else {}


def _read_report(file: str) -> dict[str, Any]:
    try:
        with open(file, encoding="utf-8") as stream:
            report = json.load(stream)
    except (OSError, ValueError):
        return {}
    return report if isinstance(report, dict) else {}


def _last_generation(results: _Results) -> dict[int, _Pickled]:
    """Returns what the ranks of the last generation have sent, by rank."""
    last = max((generation for generation, _ in results), default=0)
    return {rank: data for (generation, rank), data in results.items() if generation == last}


def _exceptions(results: dict[int, _Pickled]) -> dict[int, tuple[BaseException, str]]:
    """Returns the exceptions with their tracebacks, by rank."""
    found: dict[int, tuple[BaseException, str]] = {}
    for rank, data in sorted(results.items()):
        if data[:1] == SUCCEEDED:
            continue
        pickled, text = pickle.loads(data[1:])
        try:
            error = pickle.loads(pickled)
        except Exception:  # such as a module that is missing here
            error = RuntimeError(text.rstrip().rpartition("\n")[2])
        found[rank] = error, text
    return found


def _loaded(results: dict[int, _Pickled]) -> list[Any]:
    values = []
    for rank, data in sorted(results.items()):
        try:
            values.append(pickle.loads(data[1:]))
        except Exception as error:  # such as a module, or a GPU, that is missing here
            raise LaunchError(
                f"launch: the result of rank {rank} cannot be unpickled here: "
                f"{type(error).__name__}: {error} (LaunchError.results has all results, pickled)",
                0, {}, {}, {one: bytes(data[1:]) for one, data in results.items()}) from error
    return values


def _raise_failure(results: _Results, report: dict[str, Any], code: int,
                   printed: Optional[dict[str, Any]] = None) -> None:
    """Raises the exception that has ended the job, else a LaunchError.

    printed: what ddprun's lines say of a job that has left no report here.
    """
    error_report, report = report, report or printed or {}
    last = _last_generation(results)
    ended = report.get("state") == "ended"
    if ended and report.get("exit_code_of") == "worker":
        failed = report["failed_generations"][-1]
        generation = failed.get("generation")
        exceptions = _exceptions(last if generation is None else
                                 {rank: data for (of, rank), data in results.items()
                                  if of == generation})
        for first in failed["first"]:
            rank = first.get("rank")
            if rank in exceptions:
                error, text = exceptions[rank]
                raise error from RemoteTraceback(f"rank {rank}:\n{text}")
    what = (report.get("what") if ended else
            "ddprun was killed while the job ran" if report else
            "the job has ended without a report" if results else "the job did not start")
    raise LaunchError(f"launch: {what} (ddprun ended with exit code {code})", code, error_report,
                      {rank: error for rank, (error, _) in _exceptions(last).items()})
