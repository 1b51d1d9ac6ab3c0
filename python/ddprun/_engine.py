"""Loads libddprun_cpu.so, and declares its functions (worker_lib/c_abi/cpu.h).

The library is in the same folder, as the wheel installs it. DDPRUN_CPU_LIBRARY names another one:
that of a build tree, for a checkout.
"""
import ctypes
import os
from ctypes import POINTER, byref, c_char_p, c_int, c_int64, c_size_t, c_uint64, c_void_p

ABI_VERSION = 2

PENDING = -1
OK = 0
TIMEOUT = 3
CONNECTION = 4

STORE_SET = 0
STORE_GET = 1

# A buffer is two words of a packed string: c_char_p takes it as it is.
_BUFFERS = c_char_p
_CALL = POINTER(c_void_p)
STORE_FUNCTION = ctypes.CFUNCTYPE(c_int, c_int, c_char_p, c_void_p, c_size_t, c_int64, c_void_p)


def _load():
    path = os.environ.get("DDPRUN_CPU_LIBRARY") or os.path.join(
        os.path.dirname(os.path.abspath(__file__)), "libddprun_cpu.so")
    try:
        library = ctypes.CDLL(path)
        version = library.ddprun_cpu_abi_version()
    except (OSError, AttributeError) as error:
        raise ImportError(
            f"the library of the backend ddprun cannot be loaded: {error} (install the wheel "
            "again; in a checkout, build ddprun_cpu and set DDPRUN_CPU_LIBRARY)") from None
    if version != ABI_VERSION:
        raise ImportError(f"{path} has version {version} of its functions, this package expects "
                          f"{ABI_VERSION}: both must be of one version of ddprun")
    return library


_library = _load()


def _function(name, *arguments, returns=c_int):
    function = getattr(_library, "ddprun_cpu_" + name)
    function.argtypes = arguments
    function.restype = returns
    return function


last_error = _function("last_error", returns=c_char_p)
answer = _function("answer", c_void_p, c_char_p, c_size_t)
form = _function("form", STORE_FUNCTION, c_int, c_int, c_char_p, c_char_p, c_char_p, c_int64,
                 returns=c_void_p)
record = _function("record", c_void_p, c_uint64, c_char_p, POINTER(c_int))
close = _function("close", c_void_p, c_int64)
free = _function("free", c_void_p, returns=None)
leave_to_parent = _function("leave_to_parent", c_void_p, returns=None)
abort = _function("abort", c_void_p, c_char_p)

all_reduce = _function("all_reduce", c_void_p, _BUFFERS, c_size_t, c_int, c_int, c_int64, _CALL)
reduce = _function("reduce", c_void_p, _BUFFERS, c_size_t, c_int, c_int, c_int, c_int64, _CALL)
broadcast = _function("broadcast", c_void_p, _BUFFERS, c_size_t, c_int, c_int, c_int64, _CALL)
all_gather = _function("all_gather", c_void_p, _BUFFERS, c_size_t, _BUFFERS, c_int, c_int64, _CALL)
reduce_scatter = _function("reduce_scatter", c_void_p, _BUFFERS, _BUFFERS, c_size_t, c_int, c_int,
                           c_int64, _CALL)
gather = _function("gather", c_void_p, _BUFFERS, _BUFFERS, c_int, c_int, c_int64, _CALL)
scatter = _function("scatter", c_void_p, _BUFFERS, _BUFFERS, c_int, c_int, c_int64, _CALL)
all_to_all = _function("all_to_all", c_void_p, _BUFFERS, _BUFFERS, c_int, c_int64, _CALL)
barrier = _function("barrier", c_void_p, c_int64, _CALL)
send = _function("send", c_void_p, _BUFFERS, c_int, c_int, c_int64, _CALL)
recv = _function("recv", c_void_p, _BUFFERS, c_int, c_int, c_int64, _CALL)

call_wait = _function("call_wait", c_void_p, c_int64)
call_source = _function("call_source", c_void_p)
call_free = _function("call_free", c_void_p, returns=None)

flight_group = _function("flight_group", c_uint64, c_char_p, POINTER(c_int), c_size_t)
flight_begin = _function("flight_begin", c_uint64, c_uint64, c_int, c_int, c_uint64, c_int, c_int64,
                         returns=c_uint64)
flight_end = _function("flight_end", c_uint64, returns=None)


def error_text():
    """Returns the text of this thread's last failure."""
    return last_error().decode("utf-8", "replace")


def new_call():
    """Returns a place for the handle of a call, and the argument that points to it."""
    call = c_void_p()
    return call, byref(call)
