"""Running jobs as objects, with ``ddprun status``, ``logs``, ``stop``, ``restart``, ``signal``."""

from __future__ import annotations

import dataclasses
import json
import subprocess
from typing import Any, Iterator, Mapping, Optional, Union

from ddprun._options import to_words
from ddprun._program import find_program

_NO_JOB = 72  # docs/reference/exit_codes.md


class JobError(RuntimeError):
    """A command for a running job has failed.

    Attributes
    ----------
    exit_code : int
        The exit code of the command (``docs/reference/exit_codes.md``).
    """

    def __init__(self, text: str, exit_code: int) -> None:
        super().__init__(text)
        self.exit_code = exit_code


class JobNotFoundError(JobError):
    """No job has this name. Without a name: no job runs on this host."""


@dataclasses.dataclass(frozen=True)
class Worker:
    """A worker of this host.

    Attributes
    ----------
    rank, local_rank : int
        Its rank in the world, and on this node.
    pid : int
        Its process.
    state : str
        ``running``, or how it has ended.
    step : int, optional
        The last step that it has reported.
    """

    rank: int
    local_rank: int
    pid: int
    state: str
    step: Optional[int] = None


@dataclasses.dataclass(frozen=True)
class JobStatus:
    """The state of a job.

    Attributes
    ----------
    id : str
        Its id (``--rdzv-id``).
    phase : str
        ``running``, for example.
    generation : int
        The number of the generation that runs.
    restarts_used : int, optional
        The restarts so far. None: this host does not know it yet, and the service is silent.
    max_restarts : int
        ``--max-restarts``.
    workers : tuple of Worker
        The workers of this host. Empty if the service was asked.
    details : dict
        The object that ``ddprun status --json`` prints.
    """

    id: str
    phase: str
    generation: int
    restarts_used: Optional[int]
    max_restarts: int
    workers: tuple[Worker, ...]
    details: Mapping[str, Any] = dataclasses.field(repr=False, compare=False)


@dataclasses.dataclass(frozen=True)
class LogLine:
    """A line that a worker has written.

    Attributes
    ----------
    rank : int
        The rank of the worker.
    stream : str
        ``stdout`` or ``stderr``.
    line : str
        The text.
    """

    rank: int
    stream: str
    line: str


def _ask(command: str, words: list[str]) -> tuple[int, dict[str, Any]]:
    """Runs a command. Returns its exit code and its answer, also of one that has failed."""
    result = subprocess.run([find_program(), command, "--json", *words], encoding="utf-8",
                            errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, check=False)
    try:
        answer = json.loads(result.stdout)
    except ValueError:
        answer = {"error": result.stderr.strip() or f"ddprun {command} printed no answer"}
    if not isinstance(answer, dict):
        answer = {"error": f"ddprun {command} printed an unknown answer"}
    return result.returncode, answer


def _check(code: int, answer: Mapping[str, Any]) -> None:
    if code != 0:
        kind = JobNotFoundError if code == _NO_JOB else JobError
        raise kind(f"ddprun: {answer.get('error', answer.get('text', 'no reason was given'))}",
                   code)


class Job:
    """A running job.

    Parameters
    ----------
    name
        The job's id (``--rdzv-id``), or the process id of its ddprun. By default the only job of
        this user on this host.
    **options
        Options of the commands, with ``_`` for ``-``: ``rdzv_endpoint="node0:29400"`` asks the
        rendezvous service, wherever the job runs.

    Notes
    -----
    Each method runs a command of ``ddprun`` (``docs/how-to/control.md``). It raises
    `JobNotFoundError` if the job does not run, and `JobError` if the command fails otherwise.
    """

    def __init__(self, name: Union[str, int, None] = None, **options: Any) -> None:
        if name is None and options.get("rdzv_endpoint") is not None:
            raise ValueError("Job: a name is missing: rdzv_endpoint asks a service, which may have "
                             "many jobs (ddprun status --rdzv-endpoint lists them)")
        if isinstance(name, str) and not (name and name.isprintable()):
            raise ValueError(f"Job: invalid name {name!r} (expected an id, or a process id)")
        self._options = options
        self._words = to_words(options)
        # The name may begin with "-".
        self._name = [] if name is None else ["--", str(name)]

    def __repr__(self) -> str:
        arguments = [repr(one) for one in self._name[1:]]
        arguments += [f"{name}={value!r}" for name, value in self._options.items()]
        return f"ddprun.Job({', '.join(arguments)})"

    def status(self) -> JobStatus:
        """Returns the state of the job."""
        code, answer = _ask("status", [*self._words, *self._name])
        _check(code, answer)
        agents = answer.get("agents") or [{}]
        # The service may not answer; then this node's agent tells what it knows.
        job = answer.get("job") or {}
        known = {**agents[0], "id": agents[0].get("job"), **job}
        used = known.get("restarts_used")
        workers = tuple(
            Worker(one["rank"], one["local_rank"], one["pid"], one["state"], one.get("step"))
            for agent in agents for one in agent.get("workers", []))
        return JobStatus(id=str(known["id"]), phase=str(known["phase"]),
                         generation=int(known["generation"]),
                         restarts_used=None if used is None else int(used),
                         max_restarts=int(known["max_restarts"]), workers=workers, details=answer)

    def logs(self, *, rank: Optional[int] = None, lines: int = 100,
             follow: bool = False) -> Iterator[LogLine]:
        """Yields what the workers have written.

        Parameters
        ----------
        rank
            Only this rank.
        lines
            The last lines of each stream.
        follow
            Goes on until the job ends.
        """
        words = to_words({**({} if rank is None else {"rank": rank}), "lines": lines,
                          "follow": follow})
        process = subprocess.Popen(
            [find_program(), "logs", "--json", *words, *self._words, *self._name],
            encoding="utf-8", errors="replace", stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        last: dict[str, Any] = {}
        try:
            for text in process.stdout:
                last = json.loads(text)
                if "line" in last:
                    yield LogLine(last["rank"], last["stream"], last["line"])
            _check(process.wait(), last)
        finally:
            process.stdout.close()
            process.kill()
            process.wait()

    def stop(self, *, now: bool = False, timeout: Optional[float] = None) -> None:
        """Ends the job on all nodes, and waits until it has ended.

        Parameters
        ----------
        now
            Kills the workers at once, without ``--shutdown-grace``.
        timeout
            Seconds to wait. By default the grace period and a minute.
        """
        _check(*_ask("stop", [*to_words({"now": now, "timeout": timeout}), *self._words,
                              *self._name]))

    def restart(self) -> None:
        """Starts all workers again, as a new generation. It uses no restart of the budget."""
        _check(*_ask("restart", [*self._words, *self._name]))

    def signal(self, signal: Union[str, int], *, rank: Optional[int] = None) -> None:
        """Sends the workers of all nodes a signal.

        Parameters
        ----------
        signal
            ``"USR1"``, for example, or a number.
        rank
            Only this rank.
        """
        if not isinstance(signal, (str, int)):
            raise TypeError(f"Job.signal: invalid signal {signal!r} (expected a name or a number)")
        words = [*([] if rank is None else [f"--rank={rank}"]), *self._words]
        # An IntEnum, such as signal.SIGUSR1, is its number.
        number = signal if isinstance(signal, str) else str(int(signal))
        _check(*_ask("signal", [*words, "--", number, *self._name[1:]]))


def jobs() -> list[Job]:
    """Returns the jobs that this user runs on this host, in no order."""
    code, answer = _ask("status", [])
    if code == _NO_JOB:
        return []
    if "agents" not in answer:
        _check(code, answer)
    # Ids may be equal: that of a job is "none" by default.
    return [Job(agent["pid"]) for agent in answer["agents"]]
