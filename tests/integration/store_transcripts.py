#!/usr/bin/env python3
"""Stories: calls of PyTorch's own store clients, written down with what came of each.

    store_transcripts.py BIN_DIR [options of ddp-store...]

tells every story to a ddp-store and to this PyTorch's own server (or servers), compares the transcripts and
ends with 1 when they differ. Runs with every PyTorch from 1.13 on: what a version does not have is written
down as that. pytorch_store_test.py is the test with the PyTorch of the build, other_pytorch_test.py runs this
program with others. A difference that must be is in DIFFERENCES, with the reason.
"""

import collections
import contextlib
import datetime
import difflib
import functools
import multiprocessing
import os
import re
import subprocess
import sys
import threading
import time
import warnings
import zlib

os.environ["PYTHONWARNINGS"] = "ignore"
os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"  # a wait that times out is not worth a stack trace here
# PyTorch asks for the name of each address it meets: a name server that is slow must not cost 5 s each.
os.environ["RES_OPTIONS"] = "timeout:1 attempts:1"
warnings.simplefilter("ignore")
import torch
import torch.distributed as dist

WAIT = datetime.timedelta(seconds=20)
A_WHILE = datetime.timedelta(seconds=1)  # for a wake that may come or not
SHORT = datetime.timedelta(milliseconds=60)
DURATIONS = {WAIT: "WAIT", A_WHILE: "A_WHILE", SHORT: "SHORT"}

# Workers and PyTorch's servers are processes; torch is imported once, by the process they fork from.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(["torch", "torch.distributed"])

# From 2.4 on; 2.1 to 2.3 know the option, but not the server.
HAS_LIBUV = "use_libuv: bool = True" in dist.TCPStore.__init__.__doc__


# --- servers ---


@contextlib.contextmanager
def ddp_store(binaries, *options):
    """Yields the process, its port beside it; at the end it must leave cleanly."""
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
    """Yields the port. use_libuv: None is what this PyTorch takes by itself."""
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
    """Equal for equal values, and not too long to read."""
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
    """An exception without addresses, stack traces, and the many ways in which a socket notices its end."""
    text = str(error).split("\n")[0].split(" Exception raised from")[0]
    text = re.sub(r"SocketImpl\(.*?\]:\d+\)", "SOCKET", text)
    if re.search("Connection reset by peer|Connection was likely closed|Broken pipe", text):
        return f"raises {LOST}"
    if len(text) > 200:
        text = in_words(text)
    return f"raises {type(error).__name__}: {text}"


class Told:
    """A store whose every call is written down. What ends in _ is the Told's own."""

    answered = collections.defaultdict(set)  # class name -> what was called or read by anyone, and well

    def __init__(self, store, lines, name):
        """lines: of all stores by their names. Each has its own, because several threads may write."""
        self.untold_, self._lines, self._name = store, lines, name

    def __getattr__(self, method):
        def call(*arguments, **options):
            words = [in_words(a) for a in arguments] + [f"{k}={in_words(v)}" for k, v in options.items()]
            return self._write(
                f"{method}({', '.join(words)})", method, lambda found: found(*arguments, **options)
            )

        return call

    def read_(self, attribute):
        """Of an attribute that is no method."""
        return self._write(attribute, attribute, lambda found: found)

    def equals_(self, attribute, value):
        """For a value that each server has its own of."""
        return self._write(f"{attribute} is as it should be", attribute, lambda found: found == value)

    def _write(self, what, member, use):
        result = None
        if not hasattr(self.untold_, member):
            came = "not in this version"
        else:
            try:
                result = use(getattr(self.untold_, member))
                Told.answered[type(self.untold_).__name__].add(member)
                if member == "list_keys":  # has no order
                    result = sorted(result)
                came = in_words(result)
            except Exception as error:  # whatever the client raises is part of its behaviour
                came = complaint(error)
        self._lines[self._name].append(f"{self._name}.{what} -> {came}")
        if isinstance(result, dist.Store):
            return Told(result, self._lines, f"{self._name}.{member}")
        return result

    def within_(self, prefix):
        """A PrefixStore over this one."""
        return Told(dist.PrefixStore(prefix, self.untold_), self._lines, f"{self._name}[{prefix!r}]")

    def waits_in_(self, method, *arguments):
        """A thread that is in the call. Returns when it waits for the server's answer: its request has been
        sent. What the server is asked after that, it is asked later."""
        thread = threading.Thread(target=getattr(self, method), args=arguments)
        thread.start()
        deadline = time.monotonic() + WAIT.total_seconds()
        while thread.is_alive() and not is_in_poll(thread):
            assert time.monotonic() < deadline, f"{method}{arguments} does not wait"
        return thread


POLL = {"x86_64": {"7", "271"}, "aarch64": {"73"}}[os.uname().machine]  # numbers of poll and ppoll
RECEIVE = {"x86_64": "45", "aarch64": "207"}[os.uname().machine]  # of recvfrom: PyTorch 2.0 waits in there


def is_in_poll(thread):
    try:
        with open(f"/proc/self/task/{thread.native_id}/syscall") as state:
            return state.read().split()[0] in POLL | {RECEIVE}
    except FileNotFoundError:
        return False  # it has ended meanwhile


class Clients:
    """Of one server."""

    def __init__(self, port):
        self.port = port
        self.lines = collections.defaultdict(list)

    def connect(self, name="store", **options):
        return Told(connect(self.port, **options), self.lines, name)

    def say(self, line):
        self.lines["story"].append(line)


# --- stories ---


def needs(method):
    """For a story that means nothing in a version of PyTorch without the method."""

    def only_with(story):
        @functools.wraps(story)
        def told(clients):
            story(clients) if hasattr(dist.TCPStore, method) else clients.say(f"there is no {method}")

        return told

    return only_with


def values(clients):
    store = clients.connect()
    store.set("k", "one")
    store.set("k", "two")
    store.get("k")
    store.set("empty", "")
    store.get("empty")
    store.set("", "of the empty key")
    store.get("")
    store.set("bytes", "a\0b\u00ff\n")
    store.get("bytes")
    store.set("no text", bytes(range(128, 256)))
    store.get("no text")
    for key in ("a\0b", "/", "//", " ", "\n", "\u00e4\u4e2d\U0001f600", "init/"):
        store.set(key, f"of {key!r}")
        store.get(key)
    store.check(["a\0b"])
    store.check(["a"])
    store.set("large", "v" * (1 << 20))
    store.get("large")
    store.set("largest", "w" * (8 << 20))
    store.get("largest")
    store.set("k" * 8191, "of the longest key")
    store.get("k" * 8191)
    store.set("k", 1)  # refused by the client
    store.get("k")


def counters(clients):
    store = clients.connect()
    store.add("n", 5)
    store.add("n", -8)
    store.get("n")
    store.add("zero", 0)
    store.get("zero")
    for text in ("12abc", " 7 ", "+3", "-4x", "007", "0x10", "1e3", "\t\n 5", "-0"):
        store.set("text", text)
        store.add("text", 1)
        store.get("text")
    store.set("most", str(2**63 - 1))
    store.add("most", 1)
    store.get("most")
    store.set("least", str(-(2**63)))
    store.add("least", -1)
    store.get("least")
    store.add("n", 2**63 - 1)
    store.add("n", 2**63)  # refused by the client


def compare_set(clients):
    store = clients.connect()
    store.compare_set("c", "", "one")
    store.compare_set("c", "one", "two")
    store.compare_set("c", "one", "three")
    store.get("c")
    store.compare_set("c", "tw", "beginning")
    store.compare_set("c", "two and more", "more")
    store.compare_set("missing", "one", "two")
    store.check(["missing"])
    store.compare_set("c", "two", "")
    store.compare_set("c", "one", "three")
    store.compare_set("c", "", "four")
    store.get("c")
    store.compare_set("bytes", "", b"\0\xff")
    store.compare_set("bytes", b"\0\xff", b"\xff\0")
    store.get("bytes")


@needs("append")
def appends(clients):
    store = clients.connect()
    store.append("a", "1")
    store.append("a", "2")
    store.append("a", "")
    store.get("a")
    store.append("empty", "")
    store.check(["empty"])
    store.append("bytes", b"\xff")
    store.append("bytes", b"\0")
    store.get("bytes")
    store.add("n", 4)
    store.append("n", "2")
    store.add("n", 1)
    store.delete_key("a")
    store.append("a", "anew")
    store.get("a")


def keys(clients):
    store = clients.connect()
    store.has_extended_api()
    store.num_keys()
    store.set("a", "")
    store.check(["a"])
    store.check(["a", "b"])
    store.check(["a", "a"])
    store.check([])
    store.multi_set(["m1", "m2", "m1"], ["1", "", "3"])
    store.multi_get(["m2", "m1", "a"])
    store.multi_get(["m1", "m1"])
    store.multi_get([])
    store.multi_set([], [])
    store.multi_set(["m1", "m2"], ["of one"])  # refused by the client
    store.multi_get(["m1", "m2"])
    store.num_keys()
    store.list_keys()
    store.delete_key("a")
    store.delete_key("a")
    store.delete_key("never")
    store.check(["a"])
    store.num_keys()
    store.list_keys()


def waits(clients):
    store = clients.connect()
    store.read_("timeout")
    store.set("k", "v")
    store.wait(["k"])
    store.wait(["k"], WAIT)
    store.wait(["k", "k"])
    store.wait([])
    store.wait([], SHORT)
    for _ in range(3):
        store.wait(["missing"], SHORT)
        store.get("k")
        store.wait(["missing"], SHORT)
        store.add("n", 1)
    store.wait(["k", "missing", "other"], SHORT)
    store.set_timeout(SHORT)
    store.read_("timeout")
    store.wait(["missing"])
    store.get("missing")
    store.multi_get(["k", "missing"])
    store.multi_get(["missing", "other"])
    store.check(["missing"])
    store.set_timeout(WAIT)
    store.get("k")
    store.multi_get(["k", "n"])


@needs("queue_push")
def queues(clients):
    store = clients.connect()
    store.queue_len("q")
    store.queue_pop("q", False)
    store.queue_push("q", "one")
    store.queue_push("q", "")
    store.queue_push("q", b"\0\xff")
    store.queue_len("q")
    store.check(["q"])
    store.wait(["q"])
    store.num_keys()
    store.list_keys()
    store.delete_key("q")
    store.queue_pop("q")
    store.queue_pop("q", block=False)
    store.queue_pop("q", True)
    store.check(["q"])
    store.queue_pop("q", False)
    store.set_timeout(SHORT)
    store.queue_pop("q")
    store.queue_pop(key="q", block=True)
    store.set_timeout(WAIT)
    store.queue_push("q", "two")
    store.queue_pop("q")
    store.set("both", "key")
    store.queue_pop("both", False)
    store.queue_len("both")
    store.queue_push("both", "item")
    store.get("both")
    store.delete_key("both")
    store.check(["both"])
    store.queue_pop("both")
    store.check(["both"])


@needs("queue_push")
def queues_of_the_older_client(clients):
    """It refuses them itself, whatever the server."""
    store = clients.connect(use_libuv=False)
    store.read_("libuvBackend")
    store.queue_push("q", "one")
    store.queue_pop("q", False)
    store.queue_len("q")
    store.set("k", "v")
    store.get("k")


def prefixes(clients):
    store = clients.connect()
    inner = store.within_("inner/").within_("")
    inner.read_("underlying_store")
    inner.read_("_underlying_non_prefix_store")
    inner.set_timeout(WAIT)
    inner.read_("timeout")
    inner.has_extended_api()
    inner.set("k", "v")
    inner.get("k")
    inner.add("n", 3)
    inner.multi_set(["a", "b"], ["1", "2"])
    inner.multi_get(["b", "a"])
    inner.check(["k"])
    inner.check(["missing"])
    inner.wait(["k", "n"])
    inner.wait(["k"], WAIT)
    inner.wait(["missing"], SHORT)
    inner.compare_set("c", "", "v")
    inner.append("k", "w")
    inner.get("k")
    inner.delete_key("k")
    inner.num_keys()
    inner.list_keys()
    store.list_keys()
    inner.barrier("b", 1)
    other = inner.clone()
    if other is not None:
        other.get("a")
        other.set("of the clone", "v")
        inner.get("of the clone")
    inner.set_timeout(SHORT)
    inner.get("missing")
    store.read_("timeout")


@needs("queue_push")
def prefixed_queues(clients):
    store = clients.connect()
    inner = store.within_("inner/").within_("")
    inner.queue_push("q", "item")
    inner.queue_len("q")
    store.queue_len("q")
    inner.check(["q"])
    inner.queue_pop("q")
    inner.queue_pop("q", False)


def clones(clients):
    store = clients.connect()
    store.read_("host")
    store.equals_("port", clients.port)
    store.read_("libuvBackend")
    other = store.clone()
    if other is None:
        return
    store.set("k", "v")
    other.get("k")
    other.num_keys()
    other.read_("libuvBackend")
    other.read_("timeout")
    other.wait(["missing"], SHORT)
    other.set_timeout(SHORT)
    store.read_("timeout")
    store.get("k")
    another = other.clone()
    waiter = another.waits_in_("wait", ["comes later"], WAIT)
    store.set("comes later", "v")  # not held up by the clone that waits
    waiter.join()


def barriers(clients):
    """Not in PyTorch 2.11: its clients and servers learnt it later."""
    store = clients.connect()
    store.barrier("alone", 1)
    store.barrier("alone", 1)
    store.set_timeout(SHORT)
    store.barrier("too few", 2)
    store.set_timeout(WAIT)
    store.barrier("too few again", 2, SHORT)
    store.set("k", "v")
    store.get("k")
    if hasattr(dist.TCPStore, "barrier"):
        threads = [clients.connect(f"rank{rank}").waits_in_("barrier", "all", 3) for rank in range(2)]
        clients.connect("rank2").barrier("all", 3)
        for thread in threads:
            thread.join()
    store.num_keys()
    store.list_keys()


def wakes(clients):
    """One waits, the other creates the key, in every way there is."""
    waiting, creating = clients.connect("waiting"), clients.connect("creating")
    ways = {
        "set": lambda key: creating.set(key, "v"),
        "add": lambda key: creating.add(key, 0),
        "append": lambda key: creating.append(key, "v"),
        "multi_set": lambda key: creating.multi_set(["x", key], ["1", "2"]),
        "compare_set": lambda key: creating.compare_set(key, "", "v"),
    }
    for method, create in ways.items():
        if hasattr(dist.TCPStore, method):
            enough = A_WHILE if method == "compare_set" else WAIT  # which does not wake with all servers
            waiter = waiting.waits_in_("wait", [f"by {method}"], enough)
            creating.num_keys()  # when this is answered, the server knows of the wait
            create(f"by {method}")
            waiter.join()
    waiter = waiting.waits_in_("wait", ["one", "two"])
    creating.set("two", "v")
    creating.delete_key("two")
    creating.set("two", "v")
    creating.set("one", "v")
    waiter.join()
    waiter = waiting.waits_in_("get", "got")
    creating.set("got", "value")
    waiter.join()


@needs("queue_push")
def wakes_of_queues(clients):
    waiting, creating = clients.connect("waiting"), clients.connect("creating")
    for value in "abc":
        popper = waiting.waits_in_("queue_pop", "q")
        creating.num_keys()
        creating.queue_push("q", value)
        popper.join()
    creating.queue_len("q")
    waiter = waiting.waits_in_("wait", ["q"])
    creating.num_keys()
    creating.queue_push("q", "d")
    waiter.join()
    waiting.check(["q"])


def compare_set_that_stores_nothing(clients):
    """The key is still missing: nobody who waits for it may go on."""
    waiting, creating = clients.connect("waiting"), clients.connect("creating")
    waiter = waiting.waits_in_("wait", ["k"], A_WHILE)
    creating.num_keys()
    creating.compare_set("k", "expected", "v")
    waiter.join()
    waiting.check(["k"])


@needs("queue_push")
def queue_and_key(clients):
    """One wait for a queue that has items and a key that comes later."""
    waiting, creating = clients.connect("waiting"), clients.connect("creating")
    creating.queue_push("q", "item")
    waiter = waiting.waits_in_("wait", ["q", "k"], A_WHILE)
    creating.num_keys()
    creating.set("k", "v")
    waiter.join()
    waiting.queue_pop("q", False)


def refusals(clients):
    """Each ends the client that did it, and no other."""
    good = clients.connect("good")
    for text in ("abc", "", "-", "+-3", " ", str(2**63)):
        bad = clients.connect(f"adds to {text!r}")
        bad.set("text", text)
        bad.add("text", 1)
        bad.get("text")
        good.get("text")


def limits(clients):
    """What is too long ends the client that sends it, and no other."""
    good = clients.connect("good")
    for name, key, value in (("key", "k" * 8192, ""), ("value", "k", "v" * ((8 << 20) + 1))):
        bad = clients.connect(name)
        with contextlib.suppress(RuntimeError):  # it may hear of it now, or with the next call
            bad.untold_.set(key, value)
        bad.num_keys()
        good.num_keys()


def several(clients):
    """Clients take turns."""
    stores = [clients.connect(f"client{i}") for i in range(4)]
    for i, store in enumerate(stores * 3):
        store.add("turns", i)
        store.set(f"of{i % 4}", str(i))
        store.append("all", str(i))
        store.compare_set("latest", str(i - 1) if i else "", str(i))
        stores[(i + 1) % 4].get(f"of{i % 4}")
        store.num_keys()
    stores[0].get("latest")
    stores[3].delete_key("of0")
    stores[0].check(["of0", "of1"])


def workers(clients):
    """The client of rank 0 waits for the others; all count themselves in the key init/."""

    def join(wait_for_workers):
        return dist.TCPStore(
            "127.0.0.1", clients.port, 3, False, WAIT, wait_for_workers=wait_for_workers
        )

    others = [threading.Thread(target=join, args=(False,)) for _ in range(2)]
    for other in others:
        other.start()
    first = Told(join(True), clients.lines, "first")
    for other in others:
        other.join()
    first.num_keys()
    first.list_keys()


STORIES = [
    values,
    counters,
    compare_set,
    appends,
    keys,
    waits,
    queues,
    queues_of_the_older_client,
    prefixes,
    prefixed_queues,
    clones,
    barriers,
    wakes,
    wakes_of_queues,
    compare_set_that_stores_nothing,
    queue_and_key,
    refusals,
    limits,
    several,
    workers,
]


# --- what must be equal, and what must not ---

# The sections are those of the reference for the protocol, which docs/wire_protocol.md restates as rules.
# PyTorch's server -> stories that its own clients cannot tell to it.
NOT_TOLD = {
    "poll": {
        queues: "section 4: the older server closes the connection of a QUEUE_PUSH or QUEUE_LEN",
        prefixed_queues: "section 4: the same",
        wakes_of_queues: "section 4: the same",
        queue_and_key: "section 4: the same",
    },
    "libuv": {},
}
# PyTorch's server -> story -> [(how a line of theirs begins, the line of ours, why)].
DIFFERENCES = {
    "libuv": {
        compare_set_that_stores_nothing: [
            (
                "waiting.wait(['k'], A_WHILE) -> None",
                "waiting.wait(['k'], A_WHILE) -> raises DistStoreError: wait timeout after 1000ms, keys: /k",
                "section 4: it wakes the waiters although the key is still missing",
            ),
        ],
        queue_and_key: [
            (
                "waiting.wait(['q', 'k'], A_WHILE) -> raises",
                "waiting.wait(['q', 'k'], A_WHILE) -> None",
                "section 4: it never answers a wait for a queue that has items and a key that comes later",
            ),
        ],
    },
    "poll": {
        wakes: [
            (
                "waiting.wait(['by compare_set'], A_WHILE) -> raises",
                "waiting.wait(['by compare_set'], A_WHILE) -> None",
                "section 4: its COMPARE_SET wakes nobody",
            ),
        ],
        limits: [
            (f"{client}.num_keys() -> {theirs}", f"{client}.num_keys() -> {ours}", "section 4: it has no limits")
            for client, theirs, ours in (
                ("good", 1, 0),
                ("good", 2, 0),
                ("key", 1, f"raises {LOST}"),
                ("value", 2, f"raises {LOST}"),
            )
        ],
    },
}


def servers():
    """The kinds of server that this PyTorch has, and the option that chooses each."""
    return {"libuv": True, "poll": False} if HAS_LIBUV else {"poll": None}


def tell(story, port):
    clients = Clients(port)
    story(clients)
    return [line for _, lines in sorted(clients.lines.items()) for line in lines]


def as_ours(story, kind, theirs):
    """Their transcript with the lines of DIFFERENCES replaced; each must be there."""
    lines = list(theirs)
    for beginning, replacement, _ in DIFFERENCES[kind].get(story, []):
        places = [i for i, line in enumerate(lines) if line.startswith(beginning)]
        if not places:
            raise LookupError(f"no line begins with {beginning!r}")
        lines[places[0]] = replacement
    return lines


def differences(story, binaries, *options):
    """What a ddp-store with these options does otherwise than PyTorch's own servers: lines of a diff."""
    with ddp_store(binaries, *options) as store:
        ours = tell(story, store.port)
    found = []
    for kind, use_libuv in servers().items():
        if story in NOT_TOLD[kind]:
            continue
        with pytorch_store(use_libuv) as port:
            theirs = tell(story, port)
        try:
            expected = as_ours(story, kind, theirs)
        except LookupError as error:
            expected = theirs
            found.append(f"{story.__name__}, {kind}: DIFFERENCES is out of date: {error}")
        found += difflib.unified_diff(
            expected, ours, f"PyTorch's {kind} server, {story.__name__}", "ddp-store", lineterm="", n=1
        )
    return found


def main():
    status = 0
    for story in STORIES:
        for line in differences(story, *sys.argv[1:]):
            print(line)
            status = 1
    print("differences" if status else "equal", "for PyTorch", torch.__version__)
    return status


if __name__ == "__main__":
    sys.exit(main())
