#!/usr/bin/env python3
"""Runs the commands of a page and compares their output: tutorial_test.py PAGE SOURCE_DIR
BUILD_DIR [--python PYTHON] [--slurm] [--deadline SECONDS]

- A `console` block is a session. A line that begins with a prompt is a command. The lines
  after it are its output. Each prompt (`$`, `1$`, `node0$`) is a shell of its own.
- A command ends before the next one of its shell begins. A command for another shell begins
  when the running one has printed what the page shows before its first line with `...`.
- A command must end with exit code 0, unless the next command is `echo $?`.
- A block after a line that ends with a file name in backticks and a colon is that file.
- A `text` block after a line that ends with "Lines of" and a link to a file, and a colon, shows
  lines of that file in their order; `...` stands for lines that are left out.
- Other blocks are refused, except after `<!-- not run: REASON -->`.
- Lines may come in any order. Numbers match any number; ranks and lines that are only a number
  match themselves. Equal digests of the page must be equal in the run. A line with `...` is not
  compared, and the output of a command with such a line may have more lines.

The working directory is new. It has `examples` of the sources and `build/release`. The hosts of
a page, node0 and node1, are this host. With --slurm the page runs on a Slurm cluster of the
testbed in DDPRUN_TESTBED. Exit code 77: skipped, with the reason.
"""
import argparse
import collections
import contextlib
import itertools
import os
import pathlib
import queue
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

PROMPT = re.compile(r"(\w*\$) (.+)")
FILE_NAME = re.compile(r"`([\w.-]+)`:$")
LINES_OF = re.compile(r"Lines of \[[^]]+\]\(([^)]+)\):$")
NOT_RUN = re.compile(r"<!-- not run: .+ -->$")
MISSING_NODE = "; missing: node rank 1"  # ddprun says it where nodes have ranks
END_MARK = "tutorial-test-command-ended"
PAGE_SECONDS = 300  # below the timeout in CMakeLists.txt, by the time that a cluster takes

Command = collections.namedtuple("Command", "prompt text line shown")
File = collections.namedtuple("File", "name content")


class Failure(Exception):
    pass


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def commands_of(block, first_line):
    """Yields the commands of a console block. A backslash continues a command."""
    lines = list(enumerate(block, first_line))
    while lines:
        number, line = lines.pop(0)
        match = PROMPT.match(line)
        if not match:
            raise Failure(f"line {number}: output without a command: {line}")
        text = match[2]
        while text.endswith("\\") and lines:
            text += "\n" + lines.pop(0)[1]
        shown = []
        while lines and not PROMPT.match(lines[0][1]):
            shown.append(lines.pop(0)[1])
        yield Command(match[1], text, number, shown)


def check_lines(block, first_line, file):
    """Checks that the file has the lines of the block in this order."""
    lines = iter(line.strip() for line in file.read_text().splitlines())
    for number, line in enumerate(block, first_line):
        if line != "..." and line.strip() not in lines:
            raise Failure(f"line {number}: {file} has no such line at this place: {line}")


def steps_of(page):
    """Returns the files and commands of a page in order."""
    steps, block, language, before = [], None, None, ""
    for number, line in enumerate(page.read_text().splitlines(), 1):
        if block is None:
            if line.startswith("```"):
                block, language, first = [], line[3:].strip(), number + 1
            elif line.strip():
                before = line
        elif line != "```":
            block.append(line)
        else:
            name = FILE_NAME.search(before)
            if language == "console":
                steps += commands_of(block, first)
            elif name:
                steps.append(File(name[1], "\n".join(block) + "\n"))
            elif lines_of := LINES_OF.search(before):
                check_lines(block, first, page.parent / lines_of[1])
            elif not NOT_RUN.match(before):
                raise Failure(f"line {first}: no test checks this block; make it a console block, "
                              "or write <!-- not run: REASON --> before it")
            block, before = None, ""
    if not any(isinstance(step, Command) for step in steps):
        raise Failure("the page has no console block")
    return steps


class Forms:
    """Reduces lines to what must be equal on a page and in a run."""

    def __init__(self):
        self.digests = {}

    def of(self, line):
        line = " ".join(line.split()).removesuffix(MISSING_NODE)
        if line.isdigit():
            return line
        line = re.sub(
            r"\b[0-9a-f]{64}\b",
            lambda m: f"digest-{chr(65 + self.digests.setdefault(m[0], len(self.digests)))}", line)
        line = re.sub(r"\b[0-9a-f]{32}\b", "<id>", line)
        line = re.sub(rf"\b({re.escape(socket.gethostname())}|localhost|\w*node\d+)\b", "<host>",
                      line)
        line = re.sub(r"(?<!rank )(?<!\d)\d+([-.,:]\d+)*", "<n>", line)
        return re.sub(r"<n> (us|ms|s|min|h)\b", "<duration>", line)

    def all(self, lines):
        return collections.Counter(self.of(line) for line in lines if line.strip())


class Shell:
    """A bash that is given one command after another. A thread reads its output."""

    def __init__(self, argv, folder, environment):
        self.process = subprocess.Popen(argv, cwd=folder, env=environment, stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                                        bufsize=1, start_new_session=True)
        self.lines = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()
        self.command, self.output, self.code = None, [], 0

    def _read(self):
        for line in self.process.stdout:
            self.lines.put(line.rstrip("\n"))
        self.lines.put(f"{END_MARK} 255")

    def start(self, command, text, ends_at):
        self.command, self.output, self.code = command, [], None
        self.ends_at = ends_at
        self.process.stdin.write(
            f"{{\n{text}\n}} </dev/null\n"
            f"__code=$?; printf '\\n%s %s\\n' {END_MARK} $__code; (exit $__code)\n")

    def read_until(self, done):
        """Reads until the command has ended or done(line) is true for a line."""
        while self.code is None:
            try:
                line = self.lines.get(timeout=max(0.0, self.ends_at - time.monotonic()))
            except queue.Empty:
                raise Failure(f"line {self.command.line}: the deadline passed in: "
                              f"{self.command.text}\n" + self.output_text()) from None
            if line.startswith(END_MARK):
                self.code = int(line.split()[1])
                return
            self.output.append(line)
            if done(line):
                return

    def output_text(self):
        return "\n".join(f"    {line}" for line in self.output)

    def output_until_now(self):
        with contextlib.suppress(queue.Empty):
            while True:
                self.output.append(self.lines.get_nowait())
        return f"line {self.command.line}: {self.command.text}\n{self.output_text()}"

    def kill(self):
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


def free_port():
    """Returns a port that no process uses now, and that no connection gets by chance: the ports of
    connections begin at 32768."""
    while True:
        port = random.randrange(20000, 30000)
        with contextlib.suppress(OSError), socket.socket() as free:
            free.bind(("127.0.0.1", port))
            return port


class Session:
    """The shells of one page."""

    def __init__(self, arguments, folder, environment, shell_command):
        self.folder, self.environment, self.shell_command = folder, environment, shell_command
        self.deadline = arguments.deadline
        self.ends_at = time.monotonic() + PAGE_SECONDS
        self.replaced = {}
        if not arguments.slurm:  # the page's hosts are this host; other tests may use the port
            self.replaced = {"node0:29400": f"127.0.0.1:{free_port()}"}
        self.shells = {}
        self.shown, self.found = Forms(), Forms()

    def run(self, steps):
        for step, following in zip(steps, [*steps[1:], None]):
            if isinstance(step, File):
                (self.folder / step.name).write_text(step.content)
            else:
                self.run_command(step,
                                 isinstance(following, Command) and following.text == "echo $?")
        for shell in self.shells.values():
            self.finish(shell)

    def run_command(self, command, may_fail):
        if command.prompt not in self.shells:
            self.shells[command.prompt] = Shell(self.shell_command, self.folder, self.environment)
        shell = self.shells[command.prompt]
        for other in self.shells.values():
            if other is shell:
                self.finish(other)
            elif other.command:
                self.await_first_lines(other)
        text = command.text
        for word, replacement in self.replaced.items():
            text = text.replace(word, replacement)
        # Nodes of one host have one name and no order.
        if self.replaced and command.prompt.startswith("node"):
            text = text.replace(" --nnodes=2 ", f" --nnodes=2 --node-rank={command.prompt[4:-1]} ")
        shell.may_fail = may_fail
        shell.start(command, text, min(time.monotonic() + self.deadline, self.ends_at))

    def await_first_lines(self, shell):
        """Reads until the shell has printed the lines that the page shows before `...`."""
        first = Forms().all(itertools.takewhile(lambda line: "..." not in line,
                                                shell.command.shown))
        while shell.code is None and not first <= Forms().all(shell.output):
            shell.read_until(lambda line: True)

    def finish(self, shell):
        """Waits for the shell's command and compares what it printed."""
        command = shell.command
        if command is None:
            return
        shell.read_until(lambda line: False)
        shell.command = None
        print(f"line {command.line}: {command.text}\n{shell.output_text()}", flush=True)
        if shell.code != 0 and not shell.may_fail:
            raise Failure(f"line {command.line}: exit code {shell.code}: {command.text}")
        shown = self.shown.all(line for line in command.shown if "..." not in line)
        found = self.found.all(shell.output)
        if any("..." in line for line in command.shown):
            found &= shown
        if shown != found:
            missing, unexpected = ("\n".join(f"    {line}" for line in some)
                                   for some in (shown - found, found - shown))
            for other in self.shells.values():
                if other.command:
                    print("another terminal,", other.output_until_now(), flush=True)
            raise Failure(f"line {command.line}: the output of {command.text}\n"
                          f"  lacks:\n{missing}\n  has:\n{unexpected}")

    def kill(self):
        for shell in self.shells.values():
            shell.kill()


def environment_of(arguments, folder):
    path = [arguments.build / "bin"]
    if arguments.python:
        path.append(arguments.python.parent)
    if os.path.isdir("/usr/lib/ccache"):
        path.append("/usr/lib/ccache")
    kept = {name: value for name, value in os.environ.items()
            if not name.startswith(("PET_", "DDPRUN_", "SLURM_", "TORCHELASTIC_"))}
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT",
                 "OMP_NUM_THREADS", "CMAKE_GENERATOR"):
        kept.pop(name, None)
    # The folder has another name each time, which ccache is told to ignore.
    return kept | {"PATH": ":".join([*map(str, path), os.environ["PATH"]]), "HOME": str(folder),
                   "PYTHONPATH": str(arguments.source.resolve() / "python"),  # as if installed
                   "DDPRUN_CPU_LIBRARY": str(arguments.build.resolve() / "lib/libddprun_cpu.so"),
                   "LC_ALL": "C", "XDG_RUNTIME_DIR": str(folder / "run"),
                   "CCACHE_BASEDIR": str(folder), "CCACHE_NOHASHDIR": "1",
                   "CCACHE_DIR": os.environ.get("CCACHE_DIR",
                                                os.path.expanduser("~/.cache/ccache"))}


def slurm_shell(folder, environment):
    """Starts a Slurm cluster. Returns the command of a shell on it."""
    testbed = os.environ.get("DDPRUN_TESTBED")
    if os.geteuid() != 0:
        skip("a Slurm of our own needs root")
    if not testbed or not os.access(f"{testbed}/slurm-cluster", os.X_OK):
        skip("DDPRUN_TESTBED does not name the testbed's folder")
    for tool in ("slurmctld", "slurmd", "munged"):
        if not shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin"):
            skip(f"{tool} is missing: apt-get install slurm-wlm munge")
    # Each node has its own munged at this socket.
    state = folder / "state"
    environment |= {"PATH": f"{os.path.abspath(testbed)}:{environment['PATH']}:/usr/sbin",
                    "NC_STATE": str(state), "NC_TAG": "tut", "NC_SUBNET": "10.77.4",
                    "PET_MUNGE_SOCKET": f"{state}/local/munge.socket", "PET_REQUIRE_AUTH": "1"}
    environment.pop("XDG_RUNTIME_DIR")
    subprocess.run(["slurm-cluster", "up", "2"], env=environment, check=True, timeout=120)
    return ["slurm-cluster", "run", "bash"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("page", type=pathlib.Path)
    parser.add_argument("source", type=pathlib.Path)
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("--python", type=pathlib.Path, help="a python that has PyTorch")
    parser.add_argument("--slurm", action="store_true", help="run the page on a Slurm cluster")
    parser.add_argument("--deadline", type=float, default=50, help="seconds for each command")
    arguments = parser.parse_args()
    # Not below /tmp: it may be private to a node.
    folder = pathlib.Path(tempfile.mkdtemp(prefix="ddprun-tutorial-", dir="/var/tmp"))
    folder.chmod(0o755)
    (folder / "run").mkdir(mode=0o700)
    (folder / "build").mkdir()
    (folder / "build/release").symlink_to(arguments.build.resolve())
    (folder / "examples").symlink_to(arguments.source.resolve() / "examples")
    environment = environment_of(arguments, folder)
    session = None
    try:
        steps = steps_of(arguments.page)
        shell = slurm_shell(folder, environment) if arguments.slurm else ["bash"]
        session = Session(arguments, folder, environment, shell)
        session.run(steps)
        print(f"{arguments.page.name}: {sum(isinstance(step, Command) for step in steps)} commands "
              "ran as the page says")
    except Failure as failure:
        sys.exit(f"{arguments.page}: {failure}")
    finally:
        if session:
            session.kill()
        if arguments.slurm and shutil.which("slurm-cluster", path=environment["PATH"]):
            subprocess.run(["slurm-cluster", "down"], env=environment, check=False, timeout=60,
                           stdout=subprocess.DEVNULL)
        shutil.rmtree(folder, ignore_errors=True)


main()
