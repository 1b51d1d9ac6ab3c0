"""Running jobs as objects: what ``ddprun status``, ``logs``, ``stop``, ``restart`` and ``signal``
do."""

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
    """There is no such job, or none."""


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
    """What is known of a job.

    Attributes
    ----------
    id : str
        Its id (``--rdzv-id``).
    phase : str
        ``running``, for example.
    generation : int
        The number of the generation that runs.
    restarts_used, max_restarts : int
        The restarts.
    workers : tuple of Worker
        The workers of this host. Empty if the service was asked.
    details : dict
        All that ``ddprun status --json`` prints.
    """

    id: str
    phase: str
    generation: int
    restarts_used: int
    max_restarts: int
    workers: tuple[Worker, ...]
    details: Mapping[str, Any] = dataclasses.field(repr=False, compare=False)


@dataclasses.dataclass(frozen=True)
class LogLine:
    """A line that a worker has written: its rank, ``stdout`` or ``stderr``, and the text."""

    rank: int
    stream: str
    line: str


def _ask(command: str, words: list[str]) -> dict[str, Any]:
    """Runs a command. Returns its answer, also of one that has failed."""
    result = subprocess.run([find_program(), command, "--json", *words], text=True,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, check=False)
    try:
        answer = json.loads(result.stdout)
    except ValueError:
        answer = {"error": result.stderr.strip() or f"ddprun {command} printed no answer"}
    if not isinstance(answer, dict):
        answer = {"error": f"ddprun {command} printed an unknown answer"}
    return {**answer, "exit_code_of_command": result.returncode}


def _check(answer: Mapping[str, Any]) -> None:
    code = int(answer["exit_code_of_command"])
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
    `JobNotFoundError` if there is no such job, and `JobError` if the command fails otherwise.
    """

    def __init__(self, name: Union[str, int, None] = None, **options: Any) -> None:
        self._words = to_words(options)
        self._name = [] if name is None else [str(name)]

    def __repr__(self) -> str:
        words = self._name + self._words
        return f"ddprun.Job({', '.join(map(repr, words))})"

    def status(self) -> JobStatus:
        """Returns what is known of the job."""
        answer = _ask("status", [*self._words, *self._name])
        _check(answer)
        agents = answer.get("agents") or [{}]
        # The service may not answer; then this node's agent tells what it knows.
        job = answer.get("job") or {}
        known = {**agents[0], "id": agents[0].get("job"), **job}
        workers = tuple(
            Worker(one["rank"], one["local_rank"], one["pid"], one["state"], one.get("step"))
            for agent in agents for one in agent.get("workers", []))
        return JobStatus(id=str(known["id"]), phase=str(known["phase"]),
                         generation=int(known["generation"]),
                         restarts_used=int(known["restarts_used"]),
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
            [find_program(), "logs", "--json", *words, *self._words, *self._name], text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        last: dict[str, Any] = {}
        try:
            for text in process.stdout:
                last = json.loads(text)
                if "line" in last:
                    yield LogLine(last["rank"], last["stream"], last["line"])
            _check({**last, "exit_code_of_command": process.wait()})
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
        _check(_ask("stop", [*to_words({"now": now, "timeout": timeout}), *self._words,
                             *self._name]))

    def restart(self) -> None:
        """Starts all workers again, as a new generation. It uses no restart of the budget."""
        _check(_ask("restart", [*self._words, *self._name]))

    def signal(self, signal: Union[str, int], *, rank: Optional[int] = None) -> None:
        """Sends the workers of all nodes a signal.

        Parameters
        ----------
        signal
            ``"USR1"``, for example, or a number.
        rank
            Only this rank.
        """
        words = [] if rank is None else [f"--rank={rank}"]
        # An IntEnum, such as signal.SIGUSR1, is its number.
        number = signal if isinstance(signal, str) else str(int(signal))
        _check(_ask("signal", [number, *words, *self._words, *self._name]))


def jobs() -> list[Job]:
    """Returns the jobs that this user runs on this host, in no order."""
    answer = _ask("status", [])
    if answer["exit_code_of_command"] == _NO_JOB:
        return []
    if "agents" not in answer:
        _check(answer)
    # Ids may be equal: that of a job is "none" by default.
    return [Job(agent["pid"]) for agent in answer["agents"]]
