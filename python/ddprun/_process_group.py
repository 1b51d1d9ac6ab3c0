"""The process group of the backend "ddprun": the CPU engine for torch.distributed.

A blocking call runs on the thread that makes it, without the interpreter's lock. An asynchronous
one runs on a thread of the library. Each collective reduces in a fixed order, so the same inputs
give the same bits.
"""
import atexit
import collections
import datetime
import ipaddress
import os
import queue
import re
import socket
import struct
import sys
import threading
import time
import types
import weakref

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, Work
from torch.futures import Future

from ddprun import _engine, _flight

# By number: worker_lib/collective/element_type.h.
_TYPES = {
    dtype: number
    for number, dtype in enumerate(
        getattr(torch, name, None) for name in (
            "bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32",
            "float64", "complex64", "complex128", "uint16", "uint32", "uint64", "float8_e5m2",
            "float8_e4m3fn", "float8_e5m2fnuz", "float8_e4m3fnuz", "float8_e8m0fnu"))
    if dtype is not None
}
_BYTES = _TYPES[torch.uint8]

# By number: worker_lib/include/ddprun/reduce_op.h. A ReduceOp does not compare as the enumerators
# do, but its hash is theirs.
_OPS = {
    hash(getattr(dist.ReduceOp, name)): number
    for number, name in enumerate(
        ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR"))
}
_SUM = 0

_Error = getattr(dist, "DistBackendError", RuntimeError)
_CLOSE_GRACE_NS = 5 * 10**9
_FOREVER_NS = 2**62
_LONGEST_PAUSE = 0.05  # seconds
_FEW_MESSAGES = 16
_UNSET = AllreduceOptions().timeout
# Before it had asyncOp, PyTorch did not tell a backend whether a call blocks.
_TELLS_ASYNC = hasattr(AllreduceOptions(), "asyncOp")
_OLDEST_PYTORCH = (2, 1)
# In PyTorch 2.1 to 2.6 a Work in C++ does not keep its Python object, and then waits forever. 2.11
# keeps it. The versions between were not tried.
_KEEPS_WORKS = torch.__version__ < (2, 11)
_MOST_UNWAITED = 256
NO_RECONFIGURE = ("the backend ddprun cannot reconfigure a group (destroy it and form a new one, "
                  "or let ddprun restart the ranks)")
_pack = struct.Struct("PN").pack


def _error_of(status):
    """Returns the error of this thread's last failure."""
    text = _engine.error_text()
    return _Error(f"ddprun: Timed out in {text}" if status == _engine.TIMEOUT else text)


def _nanoseconds(timeout):
    exact = (timeout.days * 86400 + timeout.seconds) * 10**9 + timeout.microseconds * 1000
    return min(exact, _FOREVER_NS)


_REDUCE_OPS = (dist.ReduceOp, type(dist.ReduceOp.SUM))


def _options(*given):
    """Returns the options of a call. given: the last arguments of any of PyTorch's overloads."""
    found = types.SimpleNamespace(reduceOp=dist.ReduceOp.SUM, rootRank=0, timeout=_UNSET)
    options = None
    for one in given:
        if isinstance(one, datetime.timedelta):
            found.timeout = one
        elif isinstance(one, int):
            found.rootRank = one
        elif isinstance(one, _REDUCE_OPS):
            found.reduceOp = one
        elif one is not None:
            options = one
    return found if options is None else options


def _list(tensors):
    return [tensors] if isinstance(tensors, torch.Tensor) else tensors


def _is_async(options):
    return not _TELLS_ASYNC or getattr(options, "asyncOp", True)


def _number_of_type(tensor):
    number = _TYPES.get(tensor.dtype)
    if number is None:
        raise ValueError(f"the backend ddprun has no elements of {tensor.dtype}")
    return number


def _type_of(tensors):
    """Returns the number of the tensors' type; that of bytes if there are several or none."""
    numbers = {_number_of_type(one) for one in tensors}
    return numbers.pop() if len(numbers) == 1 else _BYTES


def _reduced_type_of(tensors):
    """Returns the number of the tensors' type, which is the same for all."""
    types_found = {str(one.dtype) for one in tensors}
    if len(types_found) > 1:
        raise ValueError("the backend ddprun reduces tensors of one type in a call, these are of "
                         + ", ".join(sorted(types_found)))
    return _type_of(tensors)


def _require_counts(first, second):
    if len(first) != len(second):
        raise ValueError(f"outputs: invalid length {len(first)} (expected {len(second)})")


def _require_one(tensors):
    if len(tensors) != 1:
        raise ValueError(f"the call takes one tensor, there are {len(tensors)}")


def _op_of(options):
    op = getattr(options, "reduceOp", options)
    number = _OPS.get(hash(op))
    if number is None:
        raise ValueError(f"the backend ddprun has no operation {op}")
    return number


def _refuse(tensor):
    if tensor.layout is not torch.strided:
        raise ValueError(f"the backend ddprun has no collectives of {tensor.layout} tensors")
    raise ValueError(f"the backend ddprun has only tensors of the CPU, this one is on "
                     f"{tensor.device}")


def _buffers(tensors):
    return b"".join([_pack(one.data_ptr(), one.nbytes) for one in tensors])


def _parts(tensor, count):
    """Returns the buffers of `count` equal parts of a contiguous tensor."""
    if tensor.numel() % count:
        raise ValueError(f"tensor: invalid size {tensor.numel()} (expected {count} equal parts)")
    size = tensor.nbytes // count
    begin = tensor.data_ptr()
    return b"".join([_pack(begin + i * size, size) for i in range(count)])


def _split(tensor, sizes, count):
    """Returns the buffers of the parts of a contiguous tensor, cut along its first dimension."""
    if not sizes:
        if tensor.dim() and tensor.size(0) % count:
            raise ValueError(f"the first dimension, {tensor.size(0)}, is not a multiple of {count}")
        return _parts(tensor, count)
    if len(sizes) != count or sum(sizes) != tensor.size(0):
        raise ValueError(f"the split sizes {list(sizes)} do not cut {tensor.size(0)} rows for "
                         f"{count} ranks")
    row = tensor.nbytes // tensor.size(0) if tensor.size(0) else 0
    begin = tensor.data_ptr()
    parts = []
    for rows in sizes:
        parts.append(_pack(begin, rows * row))
        begin += rows * row
    return b"".join(parts)


class _Results:
    """The tensors that a call writes, and the dense memory that the library writes for them."""

    def __init__(self, tensors, dense):
        self.dense = dense
        self._copies = [(to, copy) for to, copy in zip(tensors, dense) if to is not copy]

    def copy_back(self):
        if self._copies:
            with torch.no_grad():
                for to, copy in self._copies:
                    to.detach().copy_(copy)


class _Completer(threading.Thread):
    """Completes the futures of works, in the order of their collectives."""

    def __init__(self):
        super().__init__(name="ddprun-futures", daemon=True)
        self.works = queue.SimpleQueue()

    def run(self):
        while True:
            work = self.works.get()
            if work is None:
                return
            work._complete()
            del work


class _Work(Work):
    """A call in flight. It keeps the memory of the call."""

    _is_shared = False  # PyTorch may wait for it once for each of its tensors

    def __init__(self, group, call, results, keep, value, is_message=False):
        Work.__init__(self)
        self._group = group
        self._call = call
        self._results = results
        self._keep = keep
        self._value = value
        self._is_message = is_message
        self._lock = threading.Lock()
        self._has_ended = False
        self._error = None
        self._base = None
        self._future = None

    def _settle(self, timeout_ns):
        """Waits for the end of the call. Returns whether it has ended."""
        if self._has_ended or self._call is None:
            return True
        status = _engine.call_wait(self._call, timeout_ns)
        if status == _engine.PENDING:
            return False
        error = _error_of(status) if status else None
        with self._lock:
            if self._has_ended:
                return True
            if error is None and self._results is not None:
                try:
                    self._results.copy_back()
                except Exception as thrown:  # it is the call's error, on whichever thread this runs
                    error = thrown
            self._end(error)
        return True

    def _end(self, error):
        self._error = error
        self._has_ended = True
        self._keep = self._results = None

    def is_completed(self):
        return self._settle(0)

    def is_success(self):
        return self._settle(0) and self._error is None

    def exception(self):
        return self._error

    def wait(self, timeout=None):
        limit = _nanoseconds(timeout) if timeout else 0
        if not self._settle(limit if limit > 0 else _FOREVER_NS):
            raise _Error(f"wait for a call of the backend ddprun: it has not ended after {timeout}")
        self._group._forget(self)
        if _KEEPS_WORKS:
            if not self._is_shared:
                self._group._unwaited.pop(self, None)
            elif self._future is None:  # it stays for the other waits, without its tensors
                self._value = []
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self):
        self.wait()

    def result(self):
        return self._value

    def source_rank(self):
        return -1 if self._call is None else _engine.call_source(self._call)

    _source_rank = source_rank

    def get_future(self):
        with self._lock:
            if self._future is not None:
                return self._future
            # An error must reach users in C++, too: only one that a callback raises does.
            self._base = Future()
            self._future = self._base.then(self._value_or_error)
        if _KEEPS_WORKS:  # the future keeps the work until the call ends
            self._group._unwaited.pop(self, None)
        # A callback may wait for the future that it takes, so no thread of callbacks queues it.
        if self._settle(0) or isinstance(threading.current_thread(), _Completer):
            self._complete()
        else:
            self._group._complete_later(self)
        return self._future

    def _complete(self):
        self._settle(_FOREVER_NS)
        self._base.set_result(None)

    def _value_or_error(self, _):
        if self._error is not None:
            raise self._error
        return self._value

    def __del__(self, free=_engine.call_free):  # at exit the module may be gone already
        call, self._call = self._call, None  # other finalizers may still use this object
        if call is not None:
            free(call)


class _Done(Work):
    """A call that has ended before its function returned."""

    def is_completed(self):
        return True

    is_success = is_completed

    def wait(self, timeout=None):
        return True

    def exception(self):
        return None

    def synchronize(self):
        pass

    def result(self):
        return []

    def get_future(self):
        future = Future()
        future.set_result([])
        return future


_DONE = _Done()


def _shared(work):
    if _KEEPS_WORKS and isinstance(work, _Work):
        work._is_shared = True
    return work


class ProcessGroup(dist.ProcessGroup):
    """The ranks that run collectives together, on tensors of the CPU.

    Parameters
    ----------
    handle : int
        The group of the library, which this object owns.
    rank, size : int
        This rank, and the number of ranks.
    timeout : datetime.timedelta
        The limit of each call that has none of its own.
    """

    def __init__(self, handle, rank, size, timeout):
        super().__init__(rank, size)
        self._handle = handle
        self._rank = rank
        self._size = size
        self._timeout_ns = _nanoseconds(timeout)
        self._pending = collections.deque()  # collectives: they end in order
        self._messages = set()
        self._unwaited = collections.OrderedDict()  # works as keys, if PyTorch does not keep them
        self._most_messages = _FEW_MESSAGES  # before the next look for those that have ended
        self._sweeping = threading.Lock()
        self._starting = threading.Lock()
        self._is_closed = False
        self._completer = None
        self._group_name = ""
        self._group_desc = ""
        _open_groups.add(self)

    # --- what PyTorch asks of a group

    def getBackendName(self):
        return "ddprun"

    def getRank(self):
        return self._rank

    def getSize(self):
        return self._size

    def getGroupName(self):
        return self._group_name

    def setGroupName(self, name):
        self._group_name = name

    def getGroupDesc(self):
        return self._group_desc

    def setGroupDesc(self, text):
        self._group_desc = text

    @property
    def _device_types(self):
        return [torch.device("cpu")]

    IS_DDPRUN = True

    # Parts of PyTorch ask the backend of a device, which is this object itself.
    supports_splitting = supports_coalescing = supports_time_estimate = False

    def _get_backend(self, device):
        if torch.device(device).type != "cpu":
            raise RuntimeError(f"the backend ddprun has only tensors of the CPU, not of {device}")
        return self

    def name(self):
        return "ddprun"

    def set_timeout(self, timeout):
        self._timeout_ns = _nanoseconds(timeout)

    _set_default_timeout = set_timeout

    # --- the end

    # PyTorch 2.14 asks for them. The engine and PyTorch's C++ base keep rank and size of a group.
    supports_reconfigure = False

    def get_reconfigure_handle(self):
        raise RuntimeError(NO_RECONFIGURE)

    def reconfigure(self, _=None):
        raise RuntimeError(NO_RECONFIGURE)

    def abort(self):
        """Ends the group on all ranks: calls in flight and later ones raise an error."""
        if self._handle is not None:
            _engine.abort(self._handle, b"abort() was called")

    def shutdown(self):
        """Leaves the group, after the calls in flight."""
        self._close(_CLOSE_GRACE_NS)

    def _close(self, grace_ns):
        # The handle stays valid: another thread may be in a call with it.
        if self._handle is None:
            return
        _engine.close(self._handle, grace_ns)
        with self._starting:
            self._is_closed = True
            if self._completer is not None:
                self._completer.works.put(None)
        self._most_messages = 0
        self._forget_ended()
        self._unwaited.clear()

    # Settles no work: a finalizer may run within any code, also that of a work.
    def __del__(self, close=_engine.close, free=_engine.free, grace_ns=_CLOSE_GRACE_NS):
        handle = getattr(self, "_handle", None)
        if handle is None:
            return
        close(handle, grace_ns)
        free(handle)
        if self._completer is not None:
            self._completer.works.put(None)

    def _leave_to_parent(self):
        """Makes the group of a forked child refuse all calls: it belongs to the parent."""
        if self._handle is not None:
            _engine.leave_to_parent(self._handle)
        self._handle = None
        self._completer = None
        self._sweeping = threading.Lock()
        self._starting = threading.Lock()
        for work in [*self._pending, *self._messages]:
            work._lock = threading.Lock()
            work._call = None  # not freed: a thread of the parent may wait for it
            if not work._has_ended:
                work._end(_forked_error())

    def _open_handle(self):
        if self._handle is None:
            raise _forked_error()
        return self._handle

    # --- issuing calls

    def _limit(self, options):
        timeout = getattr(options, "timeout", _UNSET)
        return self._timeout_ns if timeout == _UNSET else _nanoseconds(timeout)

    def _run(self, function, arguments, options, results, keep, value):
        """Issues a collective, and waits for its end if the caller does.

        results: the tensors that it writes. keep: objects whose memory it uses. value: of its
        future.
        """
        handle = self._open_handle()
        if not _is_async(options):
            status = function(handle, *arguments, self._limit(options), None)
            if status:
                raise _error_of(status)
            if results is not None:
                results.copy_back()
            return _DONE
        call, place = _engine.new_call()
        status = function(handle, *arguments, self._limit(options), place)
        if status:
            raise _error_of(status)
        work = _Work(self, call, results, (results, keep), value)
        self._pending.append(work)
        self._forget_ended()
        return self._until_waited(work)

    def _until_waited(self, work):
        """Keeps a work until its wait() or get_future(), where PyTorch does not. Returns it.

        Of works without a wait only the last ones are kept, as each keeps its tensors.
        """
        if _KEEPS_WORKS:
            self._unwaited[work] = None
            if len(self._unwaited) > _MOST_UNWAITED:
                self._unwaited.popitem(last=False)
        return work

    def _forget_ended(self):
        """Drops the works that have ended. The others stay: their calls use their memory."""
        # One thread at a time drops: it must be the work that it has looked at.
        if not self._sweeping.acquire(blocking=False):
            return
        try:
            while self._pending and self._pending[0]._settle(0):
                self._pending.popleft()
            if len(self._messages) > self._most_messages:
                for work in [one for one in list(self._messages) if one._settle(0)]:
                    self._messages.discard(work)
                self._most_messages = max(_FEW_MESSAGES, 2 * len(self._messages))
        finally:
            self._sweeping.release()

    def _forget(self, work):
        """Drops a work that has ended."""
        if work._is_message:
            self._messages.discard(work)
        else:
            self._forget_ended()

    def _read(self, tensor, in_turn=True):
        """Returns the tensor's elements as one piece of memory: the tensor itself, or a copy.

        in_turn: the copy is made after the collectives in flight. Messages do not wait for these.
        """
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
            _refuse(tensor)
        if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
            return tensor
        # A collective before this one may write it.
        for work in list(self._pending) if in_turn else ():
            work._settle(_FOREVER_NS)
        return tensor.detach().resolve_conj().resolve_neg().contiguous()

    def _results(self, tensors, in_turn=True):
        return _Results(tensors, [self._read(one, in_turn) for one in tensors])

    def _complete_later(self, work):
        if work._is_message:  # it may end after any later call
            threading.Thread(target=work._complete, name="ddprun-message", daemon=True).start()
            return
        with self._starting:
            if not self._is_closed:
                if self._completer is None:
                    self._completer = _Completer()
                    self._completer.start()
                self._completer.works.put(work)
                return
        work._complete()  # the engine has ended, and the work with it

    # --- collectives

    def allreduce(self, tensors, opts=None, *more, **named):
        tensors = _list(tensors)
        tensor = tensors[0]
        # The common case, in few steps: one plain tensor, and a caller that waits.
        if (_TELLS_ASYNC and type(opts) is AllreduceOptions and not opts.asyncOp
                and len(tensors) == 1 and self._handle):
            number, op = _TYPES.get(tensor.dtype), _OPS.get(hash(opts.reduceOp))
            if (number is not None and op is not None and tensor.is_cpu
                    and tensor.layout is torch.strided and tensor.is_contiguous()
                    and not tensor.is_conj() and not tensor.is_neg()):
                status = _engine.all_reduce(
                    self._handle, _pack(tensor.data_ptr(), tensor.nbytes), 1, number, op,
                    self._limit(opts), None)
                if status:
                    raise _error_of(status)
                return _DONE
        opts = _options(opts, *more, *named.values())
        if tensor.layout is torch.sparse_coo and len(tensors) == 1:
            return self._reduce_sparse(tensor, opts)
        kind = _reduced_type_of(tensors)
        results = self._results(tensors)
        return self._run(_engine.all_reduce,
                         (_buffers(results.dense), len(tensors), kind, _op_of(opts)),
                         opts, results, None, list(tensors))

    def _reduce_sparse(self, tensor, opts):
        """Adds sparse tensors in the order of the ranks. It blocks, like all its collectives."""
        if _op_of(opts) != _SUM:
            raise ValueError("the backend ddprun has only sums of sparse tensors")
        own = tensor.coalesce()
        count = own.values().size(0)
        counts = [int(one) for one in self._gathered(torch.tensor([count]))]

        def padded(part, dimension):
            missing = list(part.shape)
            missing[dimension] = max(counts) - count
            return torch.cat([part, part.new_zeros(missing)], dimension)

        every_index = self._gathered(padded(own.indices(), 1))
        every_value = self._gathered(padded(own.values(), 0))
        parts = [torch.sparse_coo_tensor(indices[:, :n], values[:n], tensor.shape,
                                         check_invariants=False)
                 for n, indices, values in zip(counts, every_index, every_value)]
        total = parts[0]
        for one in parts[1:]:
            total = total + one
        tensor.copy_(total.coalesce())
        return self._until_waited(_Work(self, None, None, None, [tensor]))

    def _gathered(self, tensor):
        """Returns the tensors of all ranks."""
        output = tensor.new_empty((self._size,) + tuple(tensor.shape))
        ProcessGroup._allgather_base(self, output, tensor).wait()
        return output

    def allreduce_coalesced(self, tensors, opts=None):
        return _shared(self.allreduce(tensors, opts))

    def reduce(self, tensors, opts=None, *more, **named):
        tensors, opts = _list(tensors), _options(opts, *more, *named.values())
        kind = _reduced_type_of(tensors)
        results = self._results(tensors)
        return self._run(_engine.reduce,
                         (_buffers(results.dense), len(tensors), kind, _op_of(opts),
                          opts.rootRank), opts, results, None, list(tensors))

    def broadcast(self, tensors, opts=None, *more, **named):
        tensors, opts = _list(tensors), _options(opts, *more, *named.values())
        results = self._results(tensors)
        return self._run(_engine.broadcast,
                         (_buffers(results.dense), len(tensors), _type_of(tensors), opts.rootRank),
                         opts, results, None, list(tensors))

    def allgather(self, output_tensors, input_tensors, opts=None, timeout=None):
        opts = _options(opts, timeout)
        if isinstance(input_tensors, torch.Tensor):
            output_tensors, input_tensors = [output_tensors], [input_tensors]
        # One list per input, with a tensor for each rank; the library takes a list per rank.
        inputs = [self._read(one) for one in input_tensors]
        _require_counts(output_tensors, inputs)
        self._require_one_per_rank(output_tensors)
        results = self._results([output_tensors[i][rank] for rank in range(self._size)
                            for i in range(len(inputs))])
        return self._gather_all(inputs, results, _buffers(results.dense), opts, output_tensors)

    def allgather_coalesced(self, output_lists, input_list, opts=None):
        inputs = [self._read(one) for one in input_list]
        self._require_one_per_rank([output_lists])
        for of_rank in output_lists:
            _require_counts(of_rank, inputs)
        results = self._results([one for of_rank in output_lists for one in of_rank])
        return self._gather_all(inputs, results, _buffers(results.dense), opts, output_lists)

    def _allgather_base(self, output, input, opts=None, timeout=None):
        return self._gather_into([output], [input], _options(opts, timeout))

    def allgather_into_tensor_coalesced(self, outputs, inputs, opts=None):
        return _shared(self._gather_into(outputs, inputs, opts))

    def _gather_into(self, outputs, inputs, opts):
        _require_counts(outputs, inputs)
        inputs = [self._read(one) for one in inputs]
        results = self._results(outputs)
        for to, one in zip(outputs, inputs):
            if to.numel() != one.numel() * self._size or to.dtype != one.dtype:
                raise ValueError(
                    f"all_gather: the output has {to.numel()} elements of {to.dtype}; "
                    f"{self._size} ranks give {one.numel()} of {one.dtype} each")
        return self._gather_all(inputs, results, self._parts_by_rank(results.dense), opts,
                                list(outputs))

    def _gather_all(self, inputs, results, outputs, opts, value):
        return self._run(_engine.all_gather,
                         (_buffers(inputs), len(inputs), outputs, _type_of(inputs)), opts, results,
                         inputs, value)

    def reduce_scatter(self, output_tensors, input_tensors, opts=None, *more, **named):
        opts = _options(opts, *more, *named.values())
        if isinstance(output_tensors, torch.Tensor):
            output_tensors, input_tensors = [output_tensors], [input_tensors]
        _require_counts(output_tensors, input_tensors)
        self._require_one_per_rank(input_tensors)
        inputs = [self._read(input_tensors[i][rank]) for rank in range(self._size)
                  for i in range(len(output_tensors))]
        return self._scatter_reduced(output_tensors, inputs, _buffers(inputs), opts)

    def _reduce_scatter_base(self, output, input, opts=None, *more, **named):
        return self._reduce_scatter_from([output], [input],
                                         _options(opts, *more, *named.values()))

    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts=None):
        return _shared(self._reduce_scatter_from(outputs, inputs, opts))

    def _reduce_scatter_from(self, outputs, inputs, opts):
        _require_counts(outputs, inputs)
        inputs = [self._read(one) for one in inputs]
        for to, one in zip(outputs, inputs):
            if one.numel() != to.numel() * self._size or to.dtype != one.dtype:
                raise ValueError(
                    f"reduce_scatter: the input has {one.numel()} elements of {one.dtype}; "
                    f"{self._size} ranks get {to.numel()} of {to.dtype} each")
        return self._scatter_reduced(outputs, inputs, self._parts_by_rank(inputs), opts)

    def _scatter_reduced(self, outputs, inputs, buffers, opts):
        kind = _reduced_type_of([*outputs, *inputs])
        op = _SUM if opts is None else _op_of(opts)
        results = self._results(outputs)
        return self._run(_engine.reduce_scatter,
                         (buffers, _buffers(results.dense), len(outputs), kind, op),
                         opts, results, inputs, list(outputs))

    def gather(self, output_tensors, input_tensors, opts=None, *more, **named):
        opts = _options(opts, *more, *named.values())
        if isinstance(input_tensors, torch.Tensor):
            output_tensors, input_tensors = [output_tensors], [input_tensors]
        _require_one(input_tensors)
        inputs = [self._read(one) for one in input_tensors]
        is_root = self._rank == opts.rootRank
        if is_root:
            _require_one(output_tensors)
            self._require_one_per_rank(output_tensors)
        results = self._results(output_tensors[0] if is_root else [])
        return self._run(_engine.gather,
                         (_buffers(inputs), _buffers(results.dense), _type_of(inputs),
                          opts.rootRank), opts, results, inputs, output_tensors)

    def scatter(self, output_tensors, input_tensors, opts=None, *more, **named):
        opts = _options(opts, *more, *named.values())
        if isinstance(output_tensors, torch.Tensor):
            output_tensors, input_tensors = [output_tensors], [input_tensors]
        _require_one(output_tensors)
        is_root = self._rank == opts.rootRank
        if is_root:
            _require_one(input_tensors)
            self._require_one_per_rank(input_tensors)
        inputs = [self._read(one) for one in (input_tensors[0] if is_root else [])]
        results = self._results(output_tensors)
        return self._run(_engine.scatter,
                         (_buffers(inputs), _buffers(results.dense), _type_of(output_tensors),
                          opts.rootRank), opts, results, inputs, list(output_tensors))

    def alltoall(self, output_tensors, input_tensors, opts=None, timeout=None):
        opts = _options(opts, timeout)
        self._require_one_per_rank([output_tensors, input_tensors])
        inputs = [self._read(one) for one in input_tensors]
        results = self._results(output_tensors)
        return self._run(_engine.all_to_all,
                         (_buffers(inputs), _buffers(results.dense),
                          _type_of(inputs + results.dense)), opts, results, inputs,
                         list(output_tensors))

    def alltoall_base(self, output, input, output_split_sizes, input_split_sizes, opts=None,
                      timeout=None):
        opts = _options(opts, timeout)
        given = self._read(input)
        results = self._results([output])
        return self._run(_engine.all_to_all,
                         (_split(given, input_split_sizes, self._size),
                          _split(results.dense[0], output_split_sizes, self._size),
                          _type_of([given, output])), opts, results, given, [output])

    def _require_one_per_rank(self, lists):
        for one in lists:
            if len(one) != self._size:
                raise ValueError(f"a list has {len(one)} tensors, for {self._size} ranks")

    def _parts_by_rank(self, tensors):
        """Returns the buffers of each tensor's part for each rank: a list per rank."""
        parts = [_parts(one, self._size) for one in tensors]
        size = len(_pack(0, 0))
        return b"".join([part[rank * size:(rank + 1) * size] for rank in range(self._size)
                         for part in parts])

    def barrier(self, opts=None, timeout=None):
        return self._run(_engine.barrier, (), _options(opts, timeout), None, None, [])

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        """Waits until all ranks have come. The error of a timeout names those that have not.

        It names all of them, whatever wait_all_ranks says. After a timeout the group has ended.
        """
        if isinstance(timeout, float):
            timeout = datetime.timedelta(seconds=timeout)
        limit = self._timeout_ns if timeout is None else _nanoseconds(timeout)
        status = _engine.barrier(self._open_handle(), limit, None)
        if status:
            # Begins with gloo's words, which programs look for.
            text = str(_error_of(status))
            absent = re.search(r"\b(ranks? [^;:]*) did not arrive", text)
            if absent:
                text = f"{absent[1].capitalize()} failed to pass monitoredBarrier: {text}"
            if self._rank == 0:
                raise _Error(f"Rank 0 timed out in monitoredBarrier: {text}")
            raise _Error(f"Rank {self._rank} successfully reached monitoredBarrier, but received "
                         f"errors while waiting for send/recv from rank 0: {text}")

    # --- messages

    def send(self, tensors, dstRank, tag=0):
        tensors = _list(tensors)
        _require_one(tensors)
        given = self._read(tensors[0], in_turn=False)
        return self._message(_engine.send, given, (dstRank, tag), None, tensors)

    def recv(self, tensors, srcRank, tag=0):
        tensors = _list(tensors)
        _require_one(tensors)
        results = self._results(tensors, in_turn=False)
        return self._message(_engine.recv, results.dense[0], (srcRank, tag), results, tensors)

    def recv_anysource(self, tensors, tag=0):
        return self.recv(tensors, -1, tag)

    def _message(self, function, tensor, arguments, results, value):
        call, place = _engine.new_call()
        status = function(self._open_handle(), _buffers([tensor]), *arguments, self._timeout_ns,
                          place)
        if status:
            raise _error_of(status)
        work = _Work(self, call, results, (results, tensor), list(value), is_message=True)
        self._messages.add(work)
        self._forget_ended()
        return self._until_waited(work)


def _is_loopback(host):
    try:
        return ipaddress.ip_address(host.split("%")[0]).is_loopback
    except ValueError:
        return host == "localhost"


def _own_address():
    """Returns the address on the route to the master; "": the library chooses one."""
    master = os.environ.get("MASTER_ADDR")
    if not master:
        return ""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(master, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(place)  # sends nothing
            address = probe.getsockname()[0]
    except OSError:
        return ""
    # The master's host may resolve its own name to loopback, and other hosts cannot reach that.
    return "" if _is_loopback(address) and not _is_loopback(master) else address


def _has(store, key):
    if hasattr(store, "check"):
        return store.check([key])
    # Older versions have no check(). This sets nothing, and returns "-" if there is no such key.
    return store.compare_set(key, "-", "-") != b"-"


def _get(store, key, timeout_ns):
    """Returns the value of a key, once it is there."""
    # The wait of a TCPStore keeps other threads from the store, which may form groups, too.
    deadline = time.monotonic() + timeout_ns / 10**9
    pause = 0.001  # seconds
    while not _has(store, key):
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError(f"the key {key} was not set")
        time.sleep(min(pause, left))
        pause = min(2 * pause, _LONGEST_PAUSE)
    return store.get(key)


def _function_of(store, interrupts):
    """Returns the function through which the library uses a store.

    interrupts: a list that gets KeyboardInterrupt, SystemExit and the like, to be raised later.
    """

    def run(operation, key, value, value_bytes, timeout_ns, answer):
        try:
            key = key.decode()
            if operation == _engine.STORE_SET:
                store.set(key, _engine.ctypes.string_at(value, value_bytes))
                return _engine.OK
            if operation == _engine.STORE_GET:
                found = _get(store, key, timeout_ns)
            else:
                found = b"1" if _has(store, key) else b"0"
            return _engine.answer(answer, found, len(found))
        except BaseException as error:  # stores raise errors of many types
            if not isinstance(error, Exception):
                interrupts.append(error)
            text = str(error).split("\n")[0].encode()
            _engine.answer(answer, text, len(text))
            return _engine.TIMEOUT if isinstance(error, TimeoutError) else _engine.CONNECTION

    return _engine.STORE_FUNCTION(run)


def create(options, kind=ProcessGroup):
    """Makes the group of a torch.distributed group. Every rank of it calls this.

    Parameters
    ----------
    options : torch.distributed.distributed_c10d._DistributedBackendOptions
    kind : type
        Its class.

    Raises
    ------
    DistBackendError
        If a rank does not come within the timeout, or dies meanwhile.
    RuntimeError
        If this PyTorch is too old.
    """
    if torch.__version__ < _OLDEST_PYTORCH:
        raise RuntimeError(
            f"the backend ddprun needs PyTorch {'.'.join(map(str, _OLDEST_PYTORCH))} or newer, "
            f"this is {torch.__version__}")
    rank, size = options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group)
    title = f" in group {options.group_id} of ranks {ranks}" if ranks else ""
    # A store outlives a group: the second group of the same name must not read the first one's.
    turn = options.store.add(f"ddprun/{rank}", 1) if size > 1 else 1
    interrupts = []
    function = _function_of(options.store, interrupts)
    handle = _engine.form(function, rank, size, f"ddprun/{turn}".encode(), title.encode(),
                          _own_address().encode(), _nanoseconds(options.timeout))
    if interrupts:  # such as KeyboardInterrupt
        _engine.free(handle)
        raise interrupts[0]
    if not handle:
        raise _error_of(None)
    _record(handle, options, turn)
    if dist.get_debug_level() == dist.DebugLevel.DETAIL and size > 1:
        from ddprun import _checks

        kind = _checks.with_checks(kind)
    return kind(handle, rank, size, options.timeout)


def _record(handle, options, turn):
    """Records the group's calls, if its ranks are those of the launcher."""
    ranks = list(options.global_ranks_in_group)
    size = dist.get_world_size() if ranks else options.group_size
    if not _flight.is_of_launcher(dist.get_rank() if ranks else options.group_rank, size):
        return
    number = (_flight.number_of(f"{options.group_id}/{turn}") if ranks
              else _flight.number_of_world())
    ranks = ranks or range(size)
    _engine.record(handle, number, str(options.group_id).encode(),
                   (_engine.c_int * len(ranks))(*ranks))


_open_groups = weakref.WeakSet()


def _forked_error():
    return _Error("the backend ddprun: the child of a fork cannot use the groups of its parent")


def _leave_groups_to_parent():
    for group in list(_open_groups):
        group._leave_to_parent()


os.register_at_fork(after_in_child=_leave_groups_to_parent)


@atexit.register
def _leave_groups():
    # After an error that ends the program, the others must not wait for this rank.
    has_failed = getattr(sys, "last_value", None) is not None
    for group in list(_open_groups):
        group._close(0 if has_failed else _CLOSE_GRACE_NS)
