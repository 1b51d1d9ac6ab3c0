"""Records the collectives of gloo and NCCL in the worker page, under the launcher.

PyTorch keeps a flight recorder of its own (``TORCH_FR_BUFFER_SIZE``, on by default since 2.8). A
thread looks at it and copies what is new. Looking costs some microseconds; reading the recorder
takes up to 40 ms, so it is read for at most 1 % of the time.

The backend "ddprun" records its calls itself (worker_lib/c_abi/recorder.h). The groups of both have
the numbers that this module gives.
"""
import atexit
import hashlib
import json
import os
import re
import threading
import time

from ddprun._environment import is_child

_PERIOD = 0.25  # seconds between two looks
_SHARE = 0.01  # of the time, at most, for reading the recorder

# FlightCall (base/worker_page.h) by a part of PyTorch's names of calls. The first match counts.
_CALLS = (
    ("monitored_barrier", 12), ("barrier", 8), ("reduce_scatter", 5), ("reducescatter", 5),
    ("all_gather", 4), ("allgather", 4), ("all_to_all", 11), ("alltoall", 11), ("all_reduce", 1),
    ("allreduce", 1), ("broadcast", 3), ("gather", 6), ("scatter", 7), ("reduce", 2), ("send", 9),
    ("recv", 10))
_REDUCE_SCATTER, _SCATTER = 5, 7

# FlightType and the bytes of an element, by PyTorch's names.
_TYPES = {
    "Byte": (1, 1), "Char": (2, 1), "Short": (3, 2), "Int": (4, 4), "Long": (5, 8), "Half": (6, 2),
    "Float": (7, 4), "Double": (8, 8), "ComplexHalf": (9, 4), "ComplexFloat": (10, 8),
    "ComplexDouble": (11, 16), "Bool": (12, 1), "BFloat16": (16, 2), "Float8_e5m2": (24, 1),
    "Float8_e4m3fn": (25, 1), "UInt16": (28, 2), "UInt32": (29, 4), "UInt64": (30, 8)}

_worlds = 0  # groups of the world that this process has begun to form


def number_of_world():
    """Returns the number of the newest world in records. The first is 0, as in C++; a later one
    counts its collectives anew."""
    return 0 if _worlds <= 1 else number_of("world")


def number_of(name):
    """Returns the number of a group in records: the same on all its ranks, and not 0."""
    digest = hashlib.sha256(f"{_worlds}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") or 1


def is_of_launcher(rank, size):
    """Returns whether a world has the ranks that the launcher has given."""
    given = (("RANK", rank), ("WORLD_SIZE", size))
    return not is_child() and all(os.environ.get(name, str(value)) == str(value)
                                  for name, value in given)


def facts_of(entry, ranks):
    """Returns what a record says of an entry of the recorder: call, type, bytes, and the peer of a
    message as a rank of the world. None: an unknown call.

    ranks: of the world, by rank of the group.
    """
    name = entry["profiling_name"].partition(":")[2].lower()
    call = next((number for text, number in _CALLS if text in name), None)
    if call is None:
        return None
    side = "output" if call in (_REDUCE_SCATTER, _SCATTER) else "input"
    size = 0
    kind = 0
    for shape, dtype in zip(entry.get(side + "_sizes", ()), entry.get(side + "_dtypes", ())):
        kind, element = _TYPES.get(dtype, (0, 0))
        for length in shape:
            element *= length
        size += element
    partner = re.search(r"(?:->|<-)(\d+)", name)
    peer = int(partner[1]) if partner else -1
    return call, kind, size, ranks[peer] if 0 <= peer < len(ranks) else -1


class _Source:
    """One recorder of PyTorch: that of gloo, or that of NCCL."""

    def __init__(self, module, engine, dump):
        self._module = module
        self._engine = engine
        self._dump = dump
        self._status = {}
        self._newest = -1  # entry that was read
        self._next = 0.0
        self._groups = {}  # by PyTorch's number: number in the records, and ranks
        # By group and entry: the number of the record, the group's name, and the calls of the group
        # until then: when as many have completed, this one has.
        self._open = {}

    def look(self):
        status = json.loads(self._dump(False)).get("pg_status", {})
        names = set(self._module._world.pg_names.values())
        for key, (_, name, issued) in list(self._open.items()):
            completed = int(status.get(str(key[0]), {}).get("last_completed_collective", 0))
            if completed >= issued or name not in names:
                self._end(key)
        now = time.monotonic()
        if status != self._status and now >= self._next:
            entries = json.loads(self._dump(True)).get("entries", [])
            self._next = time.monotonic() + (time.monotonic() - now) / _SHARE
            self._status = status
            self._take(entries)

    def end_all(self):
        for key in list(self._open):
            self._end(key)

    def _end(self, key):
        self._engine.flight_end(self._open.pop(key)[0])

    def _take(self, entries):
        wall = time.time_ns()
        # Of the calls that have ended between two looks, the last one of each group: a rank that
        # waits nowhere tells what it did last.
        last = {entry["pg_id"]: entry["record_id"] for entry in entries if entry["retired"]}
        for entry in entries:
            key = entry["pg_id"], entry["record_id"]
            is_last = last.get(entry["pg_id"]) == entry["record_id"]
            if entry["record_id"] > self._newest and (is_last or not entry["retired"]):
                self._begin(key, entry, wall)
            if entry["retired"] and key in self._open:
                self._end(key)
        if entries:
            self._newest = entries[-1]["record_id"]

    def _begin(self, key, entry, wall):
        group = self._group_of(entry)
        facts = group and facts_of(entry, group[1])
        if not facts:
            return
        call, kind, size, peer = facts
        number = self._engine.flight_begin(
            group[0], entry["collective_seq_id"], call, kind, size, peer,
            max(wall - entry["time_created_ns"], 0))
        # The entry may be newer than the status.
        status = self._status.get(str(entry["pg_id"]), {})
        issued = max(int(status.get("last_enqueued_collective", 0)), entry["op_id"])
        self._open[key] = number, entry["process_group"][0], issued

    def _group_of(self, entry):
        """Returns the number and the ranks of the group of an entry; None: PyTorch has none."""
        if entry["pg_id"] not in self._groups:
            world = self._module._world
            name = entry["process_group"][0]
            for group, known in list(world.pg_names.items()):
                if known == name and group in world.pg_group_ranks:
                    found = self._register(group, name, entry["profiling_name"])
                    self._groups[entry["pg_id"]] = found
        return self._groups.get(entry["pg_id"])

    def _register(self, group, name, call):
        of_group = self._module._world.pg_group_ranks[group]
        ranks = sorted(of_group, key=of_group.get)
        # Two backends of a group count their calls separately.
        backend = call.partition(":")[0]
        config = self._module._world.pg_backend_config.get(group, "")
        if len(set(re.findall(r":(\w+)", config))) > 1:
            name = f"{name}:{backend}"
        elif group == self._module._world.default_pg:
            return number_of_world(), ranks
        number = number_of(name)
        self._engine.flight_group(number, name.encode(), (self._engine.c_int * len(ranks))(*ranks),
                                  len(ranks))
        return number, ranks


class _Watcher(threading.Thread):
    """Looks at the recorders until the end of the program."""

    def __init__(self, sources):
        super().__init__(name="ddprun-flight", daemon=True)
        self._sources = sources
        self._has_ended = threading.Event()

    def run(self):
        while not self._has_ended.wait(_PERIOD):
            for source in list(self._sources):
                try:
                    source.look()
                except Exception:  # another form of the recorder: there are no records then
                    source.end_all()
                    self._sources.remove(source)

    def stop(self):
        if is_child():  # the thread is the parent's, and may have held the event's lock
            return
        self._has_ended.set()
        self.join()


_watcher = None


def begin_world():
    """Counts a world that this process begins to form."""
    global _worlds
    _worlds += 1


def watch(module, rank, size):
    """Starts the thread, if the launcher reads records and PyTorch has a recorder.

    module: torch.distributed.distributed_c10d. rank, size: of the world.
    """
    global _watcher
    if _watcher is not None or not os.environ.get("DDPRUN_WORKER_PAGE"):
        return
    from torch._C import _distributed_c10d as c10d

    dumps = [getattr(c10d, name) for name in ("_dump_fr_trace_json", "_dump_nccl_trace_json")
             if hasattr(c10d, name)]
    if not dumps or not is_of_launcher(rank, size):
        return
    try:
        from ddprun import _engine
    except ImportError:
        return
    _watcher = _Watcher([_Source(module, _engine, dump) for dump in dumps])
    _watcher.start()
    atexit.register(_watcher.stop)
