"""Helpers of tests with PyTorch's own store clients: servers, and clients whose calls are
recorded.

Works with every PyTorch from 1.13 on.
"""

import collections
import contextlib
import datetime
import multiprocessing
import os
import re
import socket
import subprocess
import threading
import time
import warnings
import zlib

# Before the import of torch, which reads these variables: import this module first.
os.environ["PYTHONWARNINGS"] = "ignore"
os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"  # no stack trace when a wait times out
# PyTorch asks for the name of each address that it uses. A slow name server must not cost 5 s
# each.
os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"
warnings.simplefilter("ignore")
import torch
import torch.distributed as dist

WAIT = datetime.timedelta(seconds=20)
A_WHILE = datetime.timedelta(seconds=1)  # for a wait that may be woken or not
SHORT = datetime.timedelta(milliseconds=60)
DURATIONS = {WAIT: "WAIT", A_WHILE: "A_WHILE", SHORT: "SHORT"}

# Workers and PyTorch's servers are processes. The process that they fork from imports torch
# once.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["torch", "torch.distributed"])

# PyTorch has this server from 2.4 on; 2.1 to 2.3 know the option, but not the server.
HAS_LIBUV = "use_libuv: bool = True" in dist.TCPStore.__init__.__doc__


# --- servers ---


def free_port() -> int:
    """Returns a port of the loopback address that no process uses now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


@contextlib.contextmanager
def ddp_store(binaries, *options):
    """Yields the process, with its port as an attribute. At the end the process must exit
    cleanly."""
    server = subprocess.Popen(
        [os.path.join(binaries, "ddp-store"), "--listen", "127.0.0.1:0", *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        line = server.stdout.readline()
        assert re.fullmatch(r"ddp-store: listening on 127\.0\.0\.1:\d+\n", line), line
        server.port = int(line.rsplit(":", 1)[1])
        yield server
        server.terminate()
        _, server.log = server.communicate(timeout=10)
        assert server.returncode == 0, (server.returncode, server.log)
    finally:
        server.kill()
        server.wait()


def serve_pytorch(pipe, options):
    store = dist.TCPStore("127.0.0.1", 0, None, True, WAIT, wait_for_workers=False, **options)
    pipe.send(store.port)
    with contextlib.suppress(EOFError):
        pipe.recv()


@contextlib.contextmanager
def pytorch_store(use_libuv=None):
    """Yields the port. use_libuv: None means the default of this PyTorch."""
    ours, theirs = processes.Pipe()
    options = {} if use_libuv is None else {"use_libuv": use_libuv}
    server = processes.Process(target=serve_pytorch, args=(theirs, options), daemon=True)
    server.start()
    theirs.close()
    try:
        yield ours.recv()
    finally:
        ours.close()
        server.join(10)
        server.kill()


def connect(port, **options):
    return dist.TCPStore("127.0.0.1", port, None, False, WAIT, wait_for_workers=False, **options)


# --- transcripts ---

LOST = f"{getattr(dist, 'DistNetworkError', RuntimeError).__name__}: the connection is lost"


def in_words(value):
    """Returns a text that is equal for equal values, and not too long to read."""
    if isinstance(value, dist.Store):
        return f"a {type(value).__name__}"
    if isinstance(value, (bytes, str)) and len(value) > 60:
        data = value if isinstance(value, bytes) else value.encode()
        return f"{type(value).__name__} of {len(value)} with sum {zlib.crc32(data):08x}"
    if isinstance(value, list):
        return "[" + ", ".join(map(in_words, value)) + "]"
    if isinstance(value, datetime.timedelta):
        return DURATIONS.get(value, repr(value))
    return repr(value)


def complaint(error):
    """Returns the text of an exception without addresses and stack traces.

    The many errors of a socket whose connection ended become one."""
    text = str(error).split("\n")[0].split(" Exception raised from")[0]
    text = re.sub(r"SocketImpl\(.*?\]:\d+\)", "SOCKET", text)
    if re.search("Connection reset by peer|Connection was likely closed|Broken pipe", text):
        return f"raises {LOST}"
    if len(text) > 200:
        text = in_words(text)
    return f"raises {type(error).__name__}: {text}"


class Told:
    """A store whose every call is recorded. Names that end in _ are methods of Told itself."""

    # Class name -> members that any client has used with success.
    answered = collections.defaultdict(set)

    def __init__(self, store, lines, name):
        """lines: of all stores, by their names. Each store has its own, because several
        threads may write."""
        self.untold_, self._lines, self._name = store, lines, name

    def __getattr__(self, method):
        def call(*arguments, **options):
            words = ([in_words(a) for a in arguments]
                     + [f"{k}={in_words(v)}" for k, v in options.items()])
            return self._write(
                f"{method}({', '.join(words)})", method, lambda found: found(*arguments, **options)
            )

        return call

    def read_(self, attribute):
        """Records the value of an attribute that is not a method."""
        return self._write(attribute, attribute, lambda found: found)

    def equals_(self, attribute, value):
        """Records whether an attribute has this value, which differs between servers."""
        return self._write(f"{attribute} is as it should be", attribute,
                           lambda found: found == value)

    def _write(self, what, member, use):
        result = None
        if not hasattr(self.untold_, member):
            came = "not in this version"
        else:
            try:
                result = use(getattr(self.untold_, member))
                Told.answered[type(self.untold_).__name__].add(member)
                if member == "list_keys":  # it has no order
                    result = sorted(result)
                came = in_words(result)
            except Exception as error:  # every exception of the client is part of its behaviour
                came = complaint(error)
        self._lines[self._name].append(f"{self._name}.{what} -> {came}")
        if isinstance(result, dist.Store):
            return Told(result, self._lines, f"{self._name}.{member}")
        return result

    def within_(self, prefix):
        """Returns a PrefixStore over this one."""
        return Told(dist.PrefixStore(prefix, self.untold_), self._lines,
                    f"{self._name}[{prefix!r}]")

    def waits_in_(self, method, *arguments):
        """Starts a thread that makes the call, and returns when the thread waits for the
        server's answer.

        Its request has been sent then. Later requests of other clients reach the server after
        it."""
        thread = threading.Thread(target=getattr(self, method), args=arguments)
        thread.start()
        deadline = time.monotonic() + WAIT.total_seconds()
        while thread.is_alive() and not is_in_poll(thread):
            assert time.monotonic() < deadline, f"{method}{arguments} does not wait"
        return thread


POLL = {"x86_64": {"7", "271"}, "aarch64": {"73"}}[os.uname().machine]  # numbers of poll and ppoll
# The number of recvfrom, in which PyTorch 2.0 waits.
RECEIVE = {"x86_64": "45", "aarch64": "207"}[os.uname().machine]


def is_in_poll(thread):
    try:
        with open(f"/proc/self/task/{thread.native_id}/syscall") as state:
            return state.read().split()[0] in POLL | {RECEIVE}
    except FileNotFoundError:
        return False  # the thread has ended meanwhile


class Clients:
    """The clients of one server."""

    def __init__(self, port):
        self.port = port
        self.lines = collections.defaultdict(list)

    def connect(self, name="store", **options):
        return Told(connect(self.port, **options), self.lines, name)

    def say(self, line):
        self.lines["story"].append(line)
