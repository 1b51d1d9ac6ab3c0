"""The process group of the backend "ddprun": the CPU engine for torch.distributed.

A blocking call runs on the thread that makes it, without the interpreter's lock. An asynchronous
one runs on a thread of the library. Each collective reduces in a fixed order, so the same inputs
give the same bits.
"""
import atexit
import collections
import datetime
import os
import queue
import re
import socket
import struct
import sys
import threading
import time
import weakref

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import AllreduceOptions, Work
from torch.futures import Future

from ddprun import _engine

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
_UNSET = AllreduceOptions().timeout
# Before it had asyncOp, PyTorch did not tell a backend whether a call blocks.
_TELLS_ASYNC = hasattr(AllreduceOptions(), "asyncOp")
_pack = struct.Struct("PN").pack


def _error_of(status):
    """Returns the error of this thread's last failure."""
    text = _engine.error_text()
    return _Error(f"ddprun: Timed out in {text}" if status == _engine.TIMEOUT else text)


def _nanoseconds(timeout):
    return (timeout.days * 86400 + timeout.seconds) * 10**9 + timeout.microseconds * 1000


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


def _read(tensor):
    """Returns the tensor's elements as one piece of memory: the tensor itself, or a copy."""
    if tensor.device.type != "cpu" or tensor.layout is not torch.strided:
        _refuse(tensor)
    if tensor.is_contiguous() and not tensor.is_conj() and not tensor.is_neg():
        return tensor
    return tensor.resolve_conj().resolve_neg().contiguous()


def _buffers(tensors):
    return b"".join([_pack(one.data_ptr(), one.nbytes) for one in tensors])


def _parts(tensor, count):
    """Returns the buffers of `count` equal parts of a contiguous tensor."""
    if tensor.numel() % count:
        raise ValueError(f"a tensor of {tensor.numel()} elements has no {count} equal parts")
    size = tensor.nbytes // count
    begin = tensor.data_ptr()
    return b"".join([_pack(begin + i * size, size) for i in range(count)])


def _split(tensor, sizes, count):
    """Returns the buffers of the parts of a contiguous tensor, cut along its first dimension."""
    if not sizes:
        if tensor.dim() and tensor.size(0) % count:
            raise ValueError(f"the first dimension, {tensor.size(0)}, is no multiple of {count}")
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
    """The tensors that a call writes. What is no single piece of memory is written as a copy."""

    def __init__(self, tensors):
        self.dense = [_read(one) for one in tensors]
        self._copies = [(to, copy) for to, copy in zip(tensors, self.dense) if to is not copy]

    def copy_back(self):
        for to, copy in self._copies:
            to.copy_(copy)


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
            work._settle(_FOREVER_NS)
            work._base.set_result(None)
            del work


_settling = threading.Lock()


class _Work(Work):
    """A call in flight. It keeps the memory of the call."""

    def __init__(self, group, call, results, keep, value):
        Work.__init__(self)
        self._group = group
        self._call = call
        self._results = results
        self._keep = keep
        self._value = value
        self._has_ended = False
        self._error = None
        self._base = None
        self._future = None

    def _settle(self, timeout_ns):
        """Waits for the end of the call. Returns whether it has ended."""
        if self._has_ended:
            return True
        status = _engine.call_wait(self._call, timeout_ns)
        if status == _engine.PENDING:
            return False
        error = _error_of(status) if status else None
        with _settling:
            if not self._has_ended:
                self._error = error
                if error is None and self._results is not None:
                    self._results.copy_back()
                self._has_ended = True
                self._keep = None
        return True

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
        self._group._forget_ended()
        if self._error is not None:
            raise self._error
        return True

    def synchronize(self):
        self.wait()

    def result(self):
        return self._value

    def source_rank(self):
        return _engine.call_source(self._call)

    _source_rank = source_rank

    def get_future(self):
        if self._future is None:
            # An error must reach users in C++, too: only one that a callback raises does.
            self._base = Future()
            self._future = self._base.then(self._value_or_error)
            if self._settle(0):
                self._base.set_result(None)
            else:
                self._group._complete_later(self)
        return self._future

    def _value_or_error(self, _):
        if self._error is not None:
            raise self._error
        return self._value

    def __del__(self, free=_engine.call_free):  # at exit the module may be gone already
        free(self._call)


class _Done(Work):
    """A call that has ended before its function returned."""

    def __init__(self, value=()):
        Work.__init__(self)
        self._value = list(value)

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
        return self._value

    def get_future(self):
        future = Future()
        future.set_result(self._value)
        return future


_DONE = _Done()


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
        self._completer = None
        self._process = os.getpid()
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

    def abort(self):
        """Ends the group on all ranks: calls in flight and later ones raise an error."""
        if self._handle:
            _engine.abort(self._handle, b"abort() was called")

    def shutdown(self):
        """Leaves the group, after the calls in flight."""
        handle, self._handle = self._handle, None
        if handle is None or self._process != os.getpid():  # the child of a fork
            return
        # After an error that ends the program, the others must not wait for this rank.
        has_failed = getattr(sys, "last_value", None) is not None
        _engine.free(handle, 0 if has_failed else _CLOSE_GRACE_NS)
        if self._completer is not None:
            self._completer.works.put(None)
        self._forget_ended()

    def __del__(self):
        if getattr(self, "_handle", None):
            self.shutdown()

    # --- issuing calls

    def _limit(self, options):
        timeout = getattr(options, "timeout", _UNSET)
        return self._timeout_ns if timeout == _UNSET else _nanoseconds(timeout)

    def _run(self, function, arguments, options, results, keep, value):
        """Issues a collective, and waits for its end if the caller does.

        results: what it writes. keep: what must live as long as it. value: of its future.
        """
        if self._handle is None:
            raise _Error("the process group was destroyed")
        if not _is_async(options):
            status = function(self._handle, *arguments, self._limit(options), None)
            if status:
                raise _error_of(status)
            if results is not None:
                results.copy_back()
            return _DONE
        call, place = _engine.new_call()
        status = function(self._handle, *arguments, self._limit(options), place)
        if status:
            raise _error_of(status)
        work = _Work(self, call, results, (results, keep), value)
        self._forget_ended()
        self._pending.append(work)
        return work

    def _forget_ended(self):
        """Drops the works that have ended: the others' memory must live, even if users drop it."""
        try:
            while self._pending and self._pending[0]._settle(0):
                self._pending.popleft()
        except IndexError:  # another thread dropped it
            pass
        for work in [one for one in list(self._messages) if one._settle(0)]:
            self._messages.discard(work)

    def _complete_later(self, work):
        if self._completer is None:
            self._completer = _Completer()
            self._completer.start()
        self._completer.works.put(work)

    # --- collectives

    def allreduce(self, tensors, opts=None, timeout=None):
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
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
        if tensor.layout is torch.sparse_coo and len(tensors) == 1:
            return self._reduce_sparse(tensor, opts)
        results = _Results(tensors)
        op = _SUM if opts is None else _op_of(opts)
        return self._run(_engine.all_reduce,
                         (_buffers(results.dense), len(tensors), _type_of(tensors), op),
                         opts, results, None, list(tensors))

    def _reduce_sparse(self, tensor, opts):
        """Adds sparse tensors in the order of the ranks. It blocks, like all its collectives."""
        if opts is not None and _op_of(opts) != _SUM:
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
        return _Done([tensor])

    def _gathered(self, tensor):
        """Returns the tensors of all ranks."""
        output = tensor.new_empty((self._size,) + tuple(tensor.shape))
        self._allgather_base(output, tensor).wait()
        return output

    def allreduce_coalesced(self, tensors, opts=None):
        return self.allreduce(tensors, opts)

    def reduce(self, tensors, opts):
        results = _Results(tensors)
        return self._run(_engine.reduce,
                         (_buffers(results.dense), len(tensors), _type_of(tensors), _op_of(opts),
                          opts.rootRank), opts, results, None, list(tensors))

    def broadcast(self, tensors, opts):
        results = _Results(tensors)
        return self._run(_engine.broadcast,
                         (_buffers(results.dense), len(tensors), _type_of(tensors), opts.rootRank),
                         opts, results, None, list(tensors))

    def allgather(self, output_tensors, input_tensors, opts=None):
        if isinstance(input_tensors, torch.Tensor):
            output_tensors, input_tensors = [output_tensors], [input_tensors]
        # One list per input, with a tensor for each rank; the library takes a list per rank.
        inputs = [_read(one) for one in input_tensors]
        self._require_one_per_rank(output_tensors)
        results = _Results([output_tensors[i][rank] for rank in range(self._size)
                            for i in range(len(inputs))])
        return self._gather_all(inputs, results, _buffers(results.dense), opts, output_tensors)

    def allgather_coalesced(self, output_lists, input_list, opts=None):
        inputs = [_read(one) for one in input_list]
        results = _Results([one for of_rank in output_lists for one in of_rank])
        self._require_one_per_rank([output_lists])
        return self._gather_all(inputs, results, _buffers(results.dense), opts, output_lists)

    def _allgather_base(self, output, input, opts=None):
        return self._gather_into([output], [input], opts)

    def allgather_into_tensor_coalesced(self, outputs, inputs, opts=None):
        return self._gather_into(outputs, inputs, opts)

    def _gather_into(self, outputs, inputs, opts):
        inputs = [_read(one) for one in inputs]
        results = _Results(outputs)
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

    def reduce_scatter(self, output_tensors, input_tensors, opts=None):
        if isinstance(output_tensors, torch.Tensor):
            output_tensors, input_tensors = [output_tensors], [input_tensors]
        self._require_one_per_rank(input_tensors)
        inputs = [_read(input_tensors[i][rank]) for rank in range(self._size)
                  for i in range(len(output_tensors))]
        return self._scatter_reduced(output_tensors, inputs, _buffers(inputs), opts)

    def _reduce_scatter_base(self, output, input, opts=None):
        return self._reduce_scatter_from([output], [input], opts)

    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts=None):
        return self._reduce_scatter_from(outputs, inputs, opts)

    def _reduce_scatter_from(self, outputs, inputs, opts):
        inputs = [_read(one) for one in inputs]
        for to, one in zip(outputs, inputs):
            if one.numel() != to.numel() * self._size or to.dtype != one.dtype:
                raise ValueError(
                    f"reduce_scatter: the input has {one.numel()} elements of {one.dtype}; "
                    f"{self._size} ranks get {to.numel()} of {to.dtype} each")
        return self._scatter_reduced(outputs, inputs, self._parts_by_rank(inputs), opts)

    def _scatter_reduced(self, outputs, inputs, buffers, opts):
        results = _Results(outputs)
        op = _SUM if opts is None else _op_of(opts)
        return self._run(_engine.reduce_scatter,
                         (buffers, _buffers(results.dense), len(outputs), _type_of(outputs), op),
                         opts, results, inputs, list(outputs))

    def gather(self, output_tensors, input_tensors, opts):
        inputs = [_read(one) for one in input_tensors]
        is_root = self._rank == opts.rootRank
        if is_root:
            self._require_one_per_rank(output_tensors)
        results = _Results(output_tensors[0] if is_root else [])
        return self._run(_engine.gather,
                         (_buffers(inputs), _buffers(results.dense), _type_of(inputs),
                          opts.rootRank), opts, results, inputs, output_tensors)

    def scatter(self, output_tensors, input_tensors, opts):
        is_root = self._rank == opts.rootRank
        if is_root:
            self._require_one_per_rank(input_tensors)
        inputs = [_read(one) for one in (input_tensors[0] if is_root else [])]
        results = _Results(output_tensors)
        return self._run(_engine.scatter,
                         (_buffers(inputs), _buffers(results.dense), _type_of(output_tensors),
                          opts.rootRank), opts, results, inputs, list(output_tensors))

    def alltoall(self, output_tensors, input_tensors, opts=None):
        self._require_one_per_rank([output_tensors, input_tensors])
        inputs = [_read(one) for one in input_tensors]
        results = _Results(output_tensors)
        return self._run(_engine.all_to_all,
                         (_buffers(inputs), _buffers(results.dense),
                          _type_of(inputs + results.dense)), opts, results, inputs,
                         list(output_tensors))

    def alltoall_base(self, output, input, output_split_sizes, input_split_sizes, opts=None):
        given = _read(input)
        results = _Results([output])
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

    def barrier(self, opts=None):
        return self._run(_engine.barrier, (), opts, None, None, [])

    def monitored_barrier(self, timeout=None, wait_all_ranks=False):
        """Waits until all ranks have come. The error of a timeout names those that have not.

        It names all of them, whatever wait_all_ranks says. After a timeout the group has ended.
        """
        if isinstance(timeout, float):
            timeout = datetime.timedelta(seconds=timeout)
        limit = self._timeout_ns if timeout is None else _nanoseconds(timeout)
        if self._handle is None:
            raise _Error("the process group was destroyed")
        status = _engine.barrier(self._handle, limit, None)
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
        given = _read(tensors[0])
        return self._message(_engine.send, given, (dstRank, tag), None, tensors)

    def recv(self, tensors, srcRank, tag=0):
        results = _Results(tensors)
        return self._message(_engine.recv, results.dense[0], (srcRank, tag), results, tensors)

    def recv_anysource(self, tensors, tag=0):
        return self.recv(tensors, -1, tag)

    def _message(self, function, tensor, arguments, results, value):
        if self._handle is None:
            raise _Error("the process group was destroyed")
        call, place = _engine.new_call()
        status = function(self._handle, _buffers([tensor]), *arguments, self._timeout_ns, place)
        if status:
            raise _error_of(status)
        self._forget_ended()
        work = _Work(self, call, results, (results, tensor), list(value))
        self._messages.add(work)
        return work


def _own_address():
    """Returns the address on the route to the master; "": the library chooses one."""
    master = os.environ.get("MASTER_ADDR")
    if not master:
        return ""
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(master, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(place)  # sends nothing
            return probe.getsockname()[0]
    except OSError:
        return ""


def _function_of(store):
    """Returns the function through which the library uses a store."""

    def run(operation, key, value, value_bytes, timeout_ns, answer):
        key = key.decode()
        begin = time.monotonic()
        try:
            if operation == _engine.STORE_SET:
                store.set(key, _engine.ctypes.string_at(value, value_bytes))
                return _engine.OK
            if operation == _engine.STORE_GET:
                store.wait([key], datetime.timedelta(milliseconds=max(timeout_ns // 10**6, 1)))
                found = store.get(key)
            else:
                found = b"1" if store.check([key]) else b"0"
            _engine.answer(answer, found, len(found))
            return _engine.OK
        except Exception as error:  # stores raise errors of many types
            text = str(error).split("\n")[0].encode()
            _engine.answer(answer, text, len(text))
            is_late = (operation == _engine.STORE_GET
                       and time.monotonic() - begin >= 0.9e-9 * timeout_ns)
            return _engine.TIMEOUT if is_late else _engine.CONNECTION

    return _engine.STORE_FUNCTION(run)


def create(options, backend_options):
    """Makes the group of a torch.distributed group. Every rank of it calls this.

    Parameters
    ----------
    options : torch.distributed.distributed_c10d._DistributedBackendOptions
    backend_options : object
        Not used.

    Raises
    ------
    DistBackendError
        If a rank does not come within the timeout, or dies meanwhile.
    """
    del backend_options
    rank, size = options.group_rank, options.group_size
    ranks = list(options.global_ranks_in_group)
    title = f" in group {options.group_id} of ranks {ranks}" if ranks else ""
    # A store outlives a group: the second group of the same name must not read the first one's.
    turn = options.store.add(f"ddprun/{rank}", 1) if size > 1 else 1
    function = _function_of(options.store)
    handle = _engine.form(function, rank, size, f"ddprun/{turn}".encode(), title.encode(),
                          _own_address().encode(), _nanoseconds(options.timeout))
    if not handle:
        raise _error_of(None)
    return ProcessGroup(handle, rank, size, options.timeout)


_open_groups = weakref.WeakSet()


@atexit.register
def _leave_groups():
    for group in list(_open_groups):
        group.shutdown()
