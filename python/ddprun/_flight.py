"""Records the collectives of gloo in the worker page, under the launcher.

PyTorch keeps a flight recorder of its own (``TORCH_FR_BUFFER_SIZE``, on by default since 2.8). Its
status says whether a group has moved, and whether a collective is in progress; a thread asks four
times a second. That takes microseconds. Its entries say which calls these were. Reading them holds
the GIL, up to 0.3 s for 2,000 entries. So they are read once for each time that a group stands
still, and not in a program whose groups move.

NCCL is not recorded. Its numbers mix messages and collectives, parts of a batch of messages never
end, and reading its entries calls CUDA with the GIL held, which may hang.

The backend "ddprun" records its calls itself (worker_lib/c_abi/recorder.h). The groups of both have
the numbers that this module gives.
"""
import atexit
import hashlib
import json
import os
import threading
import time

from ddprun._environment import is_child

_PERIOD = 0.25  # seconds between two looks
_STANDS = 1.0  # seconds after which a group stands still
# A reading of the entries takes at most this share of the time that a group has stood still.
_SHARE_WAITING = 0.05  # the program waits for a collective
_SHARE_WORKING = 0.01

# FlightCall (base/worker_page.h) by a part of PyTorch's names of calls. The first match counts.
_CALLS = (
    ("barrier", 8), ("reduce_scatter", 5), ("reducescatter", 5), ("all_gather", 4),
    ("allgather", 4), ("all_to_all", 11), ("alltoall", 11), ("all_reduce", 1), ("allreduce", 1),
    ("broadcast", 3), ("gather", 6), ("scatter", 7), ("reduce", 2))
_REDUCE_SCATTER, _SCATTER = 5, 7

# FlightType and the bytes of an element, by PyTorch's names.
_TYPES = {
    "Byte": (1, 1), "Char": (2, 1), "Short": (3, 2), "Int": (4, 4), "Long": (5, 8), "Half": (6, 2),
    "Float": (7, 4), "Double": (8, 8), "ComplexHalf": (9, 4), "ComplexFloat": (10, 8),
    "ComplexDouble": (11, 16), "Bool": (12, 1), "BFloat16": (16, 2), "Float8_e5m2": (24, 1),
    "Float8_e4m3fn": (25, 1), "UInt16": (28, 2), "UInt32": (29, 4), "UInt64": (30, 8)}

_worlds = 0  # groups of the world that this process has begun to form
_world_began = 0  # time.time_ns() of the newest one


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


def facts_of(entry):
    """Returns what a record says of an entry of the recorder: call, type and bytes. None: an
    unknown call."""
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
    return call, kind, size


class _Group:
    """What is known of a group of gloo, and the record of the collective that it waits in."""

    def __init__(self, engine):
        self._engine = engine
        self._status = None
        self._since = 0.0  # when the status changed
        self._was_read = False
        self._record = 0  # in progress; 0: none
        self._identity = None  # name, world, and number in the records

    def see(self, status, now):
        """Takes the group's status. Returns whether it has moved."""
        if status == self._status:
            return False
        self.end()
        self._status, self._since, self._was_read = status, now, False
        return True

    def wants_entries(self, now, cost):
        """Returns whether to read the entries now. cost: seconds that a reading takes."""
        share = _SHARE_WAITING if self._completed() < self._enqueued() else _SHARE_WORKING
        return not self._was_read and now - self._since >= max(_STANDS, cost / share)

    def take(self, entries, find, wall):
        """Records the newest call that has ended, and the oldest one in progress.

        entries: of this group, in order. find(name): returns the number of a group, or None.
        """
        self._was_read = True
        if not entries:
            return
        name = entries[0]["process_group"][0]
        if self._identity is None:
            number = find(name)
            if number is None:
                return
            self._identity = name, _worlds, number
        ended = [entry for entry in entries if entry["op_id"] <= self._completed()]
        waits = [entry for entry in entries if self._completed() < entry["op_id"]
                 and not entry["retired"]]
        self.end()
        if ended:
            self._engine.flight_end(self._begin(ended[-1], wall))
        if waits:
            self._record = self._begin(waits[0], wall)

    def is_of_former_world(self, names):
        """Returns true if PyTorch has destroyed the group. Its calls may never end."""
        return self._identity is not None and (
            self._identity[1] != _worlds or self._identity[0] not in names)

    def end(self):
        if self._record:
            self._engine.flight_end(self._record)
        self._record = 0

    def _begin(self, entry, wall):
        facts = facts_of(entry)
        if facts is None:
            return 0
        return self._engine.flight_begin(self._identity[2], entry["collective_seq_id"], *facts, -1,
                                         max(wall - entry["time_created_ns"], 0))

    # These numbers also count messages: they differ between ranks.
    def _enqueued(self):
        return int(self._status["last_enqueued_collective"])

    def _completed(self):
        return int(self._status["last_completed_collective"])


class _Source:
    """The recorder of PyTorch.

    module: torch.distributed.distributed_c10d. dump: returns the recorder's text, with or without
    entries. moved: called after the groups have moved.
    """

    def __init__(self, module, engine, dump, moved):
        self._module = module
        self._engine = engine
        self._dump = dump
        self._moved = moved
        self._cost = 0.0  # seconds of the last reading
        self._groups = {}  # by PyTorch's number
        self._ended = set()  # numbers of groups that were destroyed

    def look(self):
        status = json.loads(self._dump(False)).get("pg_status", {})
        now = time.monotonic()
        names = set(self._module._world.pg_names.values())
        for number in [number for number, group in self._groups.items()
                       if group.is_of_former_world(names)]:
            self._groups.pop(number).end()
            self._ended.add(number)
        is_first = not self._groups
        for number, of_group in status.items():
            if number in self._ended:
                continue
            if number not in self._groups:
                self._groups[number] = _Group(self._engine)
            if self._groups[number].see(of_group, now):
                self._moved()
        # The first reading is cheap, and shows that this program is recorded.
        if (is_first and self._groups) or any(group.wants_entries(now, self._cost)
                                              for group in self._groups.values()):
            self._read(status)
            self._cost = time.monotonic() - now

    def _read(self, status):
        text = json.loads(self._dump(True))
        of_groups = {}
        for entry in text.get("entries", []):
            # A former world had groups of the same names.
            if entry["profiling_name"].startswith("gloo:") and (
                    entry["time_created_ns"] >= _world_began):
                of_groups.setdefault(str(entry["pg_id"]), []).append(entry)
        wall = time.time_ns()
        # The world comes last: the newest record says where a rank is.
        for number in sorted(self._groups, key=int, reverse=True):
            # A group that has moved since is left for a later reading.
            if text.get("pg_status", {}).get(number) == status[number]:
                self._groups[number].take(of_groups.get(number, []), self._number_of, wall)

    def end(self):
        """Ends all records."""
        for group in self._groups.values():
            group.end()

    def _number_of(self, name):
        """Returns the number of a group, after its ranks were written to the page."""
        world = self._module._world
        for handle, known in list(world.pg_names.items()):
            if known != name or handle not in world.pg_group_ranks:
                continue
            if handle == world.default_pg:
                return number_of_world()
            of_group = world.pg_group_ranks[handle]
            ranks = sorted(of_group, key=of_group.get)
            number = number_of(name)
            self._engine.flight_group(number, name.encode(),
                                      (self._engine.c_int * len(ranks))(*ranks), len(ranks))
            return number
        return None


class _Watcher(threading.Thread):
    """Looks at the recorder until the end of the program."""

    def __init__(self, source):
        super().__init__(name="ddprun-flight", daemon=True)
        self._source = source
        self._has_ended = threading.Event()

    def run(self):
        try:
            while not self._has_ended.wait(_PERIOD):
                self._source.look()
        except Exception:  # another form of the recorder: there are no records then
            pass
        finally:
            self._source.end()

    def stop(self):
        self._has_ended.set()
        self.join(1)  # a reading that does not end must not keep the program


_watcher = None


def begin_world():
    """Counts a world that this process begins to form."""
    global _worlds, _world_began
    _worlds += 1
    _world_began = time.time_ns()


def give_up_world():
    """Takes back begin_world(): the world was not formed."""
    global _worlds
    _worlds -= 1


def watch(module, rank, size):
    """Starts the thread, if the launcher reads records and PyTorch has a recorder for gloo.

    module: torch.distributed.distributed_c10d. rank, size: of the world.
    """
    global _watcher
    if _watcher is not None or not os.environ.get("DDPRUN_WORKER_PAGE"):
        return
    from torch._C import _distributed_c10d as c10d

    if not hasattr(c10d, "_dump_fr_trace_json") or not is_of_launcher(rank, size):
        return
    if c10d.get_debug_level() == c10d.DebugLevel.DETAIL:  # a group is two of gloo then
        return
    try:
        from ddprun import _engine, _progress
    except ImportError:
        return
    _watcher = _Watcher(_Source(module, _engine, c10d._dump_fr_trace_json,
                                _progress.report_activity))
    _watcher.start()
    atexit.register(_watcher.stop)
