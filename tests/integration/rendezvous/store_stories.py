"""Stories: calls of PyTorch's clients to a store, and the known differences of the results.

A story runs with the clients of a server. store_transcripts.py compares the results. If a
version of PyTorch lacks a call, the transcript says so.
"""

import contextlib
import functools
import threading

from pytorch_clients import A_WHILE, LOST, SHORT, WAIT, Told, dist


def needs(method):
    """Marks a story that is meaningless in a version of PyTorch without the method."""

    def only_with(story):
        @functools.wraps(story)
        def told(clients):
            if hasattr(dist.TCPStore, method):
                story(clients)
            else:
                clients.say(f"there is no {method}")

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
    store.set("k", 1)  # the client refuses it
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
    store.add("n", 2**63)  # the client refuses it


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
    store.multi_set(["m1", "m2"], ["of one"])  # the client refuses it
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
    store.wait([], WAIT)
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
    """The client itself refuses these calls with every server."""
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
    another = other.clone()  # with the long timeout: it connects
    other.set_timeout(SHORT)
    store.read_("timeout")
    store.get("k")
    waiter = another.waits_in_("wait", ["comes later"], WAIT)
    store.set("comes later", "v")  # the waiting clone does not delay it
    waiter.join()


def barriers(clients):
    """PyTorch 2.11 has none: its clients and servers got them later."""
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
        threads = [clients.connect(f"rank{rank}").waits_in_("barrier", "all", 3)
                   for rank in range(2)]
        clients.connect("rank2").barrier("all", 3)
        for thread in threads:
            thread.join()
    store.num_keys()
    store.list_keys()


def wakes(clients):
    """One client waits, the other creates the key, in every possible way."""
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
            # With some servers compare_set does not wake the waiter.
            enough = A_WHILE if method == "compare_set" else WAIT
            waiter = waiting.waits_in_("wait", [f"by {method}"], enough)
            creating.num_keys()  # after this answer the server knows of the wait
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
    """The key is still missing: no client that waits for it may continue."""
    waiting, creating = clients.connect("waiting"), clients.connect("creating")
    waiter = waiting.waits_in_("wait", ["k"], A_WHILE)
    creating.num_keys()
    creating.compare_set("k", "expected", "v")
    waiter.join()
    waiting.check(["k"])


@needs("queue_push")
def queue_and_key(clients):
    """One wait is for a queue that has items, and a key that comes later."""
    waiting, creating = clients.connect("waiting"), clients.connect("creating")
    creating.queue_push("q", "item")
    waiter = waiting.waits_in_("wait", ["q", "k"], A_WHILE)
    creating.num_keys()
    creating.set("k", "v")
    waiter.join()
    waiting.queue_pop("q", False)


def refusals(clients):
    """Each refused call ends the client that made it, and no other."""
    good = clients.connect("good")
    for text in ("abc", "", "-", "+-3", " ", str(2**63)):
        bad = clients.connect(f"adds to {text!r}")
        bad.set("text", text)
        bad.add("text", 1)
        bad.get("text")
        good.get("text")


def limits(clients):
    """Data that are too long end the client that sends them, and no other."""
    good = clients.connect("good")
    for name, key, value in (("key", "k" * 8192, ""), ("value", "k", "v" * ((8 << 20) + 1))):
        bad = clients.connect(name)
        with contextlib.suppress(RuntimeError):  # it may see the end now, or at the next call
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
    """The client of rank 0 waits for the others. All count themselves in the key init/."""

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


# --- calls that must be equal, and calls that must not ---

# The sections are those of the protocol's reference, which docs/reference/wire_protocol.md restates
# as rules. PyTorch's server -> stories that its own clients cannot run against it.
NOT_TOLD = {
    "poll": {
        queues: "section 4: the older server closes the connection of a QUEUE_PUSH or QUEUE_LEN",
        prefixed_queues: "section 4: the same",
        wakes_of_queues: "section 4: the same",
        queue_and_key: "section 4: the same",
    },
    "libuv": {},
}
# PyTorch's server -> story -> [(beginning of a line of theirs, the line of ours, reason)].
DIFFERENCES = {
    "libuv": {
        compare_set_that_stores_nothing: [
            (
                "waiting.wait(['k'], A_WHILE) -> None",
                "waiting.wait(['k'], A_WHILE) -> raises DistStoreError: "
                "wait timeout after 1000ms, keys: /k",
                "section 4: it wakes the waiters although the key is still missing",
            ),
        ],
        queue_and_key: [
            (
                "waiting.wait(['q', 'k'], A_WHILE) -> raises",
                "waiting.wait(['q', 'k'], A_WHILE) -> None",
                "section 4: it never answers a wait for a queue that has items and a key that "
                "comes later",
            ),
        ],
    },
    "poll": {
        wakes: [
            (
                "waiting.wait(['by compare_set'], A_WHILE) -> raises",
                "waiting.wait(['by compare_set'], A_WHILE) -> None",
                "section 4: its COMPARE_SET wakes no waiter",
            ),
        ],
        limits: [
            (f"{client}.num_keys() -> {theirs}", f"{client}.num_keys() -> {ours}",
             "section 4: it has no limits")
            for client, theirs, ours in (
                ("good", 1, 0),
                ("good", 2, 0),
                ("key", 1, f"raises {LOST}"),
                ("value", 2, f"raises {LOST}"),
            )],
    },
}
