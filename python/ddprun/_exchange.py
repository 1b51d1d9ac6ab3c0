"""Brings the call of `ddprun.launch` to the workers, and their results back, over TCP.

The process that called `launch` listens. A worker connects for each message. Both prove that they
know the secret of the job, and each message has a code by which the other side checks it. What is
sent is not encrypted, like the traffic between workers.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import os
import pickle
import secrets
import socket
import struct
import threading
import time
from typing import Optional, Union

PLACE_VARIABLE = "DDPRUN_LAUNCH"  # for workers: the secret, and where to connect
MAX_BYTES = 1 << 32  # of a message
_NONCE_BYTES = 32
_CODE_BYTES = 32
_PATIENCE = 20.0  # seconds until both sides have proved what they know
_ANSWER_PATIENCE = 600.0  # seconds; the process that called launch may be stopped for a while
_MOST_CONNECTIONS = 4096  # at a time
_GET, _PUT = b"g", b"p"
_HEAD = struct.Struct("<cqq")  # of a request: which one, generation, rank
# The first byte of a result: what follows is the pickled result, or the pickled pair of the pickled
# exception and its traceback. So a failure can be read next to results that cannot be unpickled.
SUCCEEDED, FAILED = b"\1", b"\0"
_NO_RESULT = SUCCEEDED + pickle.dumps(None)  # of a function that ends its process by sys.exit(0)
_PIECE_BYTES = 4 << 20  # each has the whole patience
_MOST_PROBED = 8  # hosts; a name that only ssh knows may take a timeout of DNS each
_FULL_PAUSE = 0.1  # seconds, when this process has too many open files


class _Connection:
    """A connection whose two sides know the same secret."""

    def __init__(self, connection: socket.socket, secret: bytes, is_server: bool) -> None:
        self._socket = connection
        connection.settimeout(_PATIENCE)
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        own = secrets.token_bytes(_NONCE_BYTES)
        connection.sendall(own)
        other = self._receive(_NONCE_BYTES)
        nonces = own + other if is_server else other + own
        self._key = hmac.digest(secret, nonces, hashlib.sha256)
        self._names = (b"server", b"client") if is_server else (b"client", b"server")
        self._counts = [0, 0]  # of sent and received messages
        self.send(b"")
        self.receive(0)
        connection.settimeout(_ANSWER_PATIENCE)

    def __enter__(self) -> _Connection:
        return self

    def __exit__(self, *exception: object) -> None:
        self._socket.close()

    def send(self, *parts: bytes) -> None:
        size = sum(map(len, parts))
        self._socket.sendall(struct.pack("<Q", size) + self._code(0, *parts))
        for part in parts:
            view = memoryview(part)
            for begin in range(0, len(view), _PIECE_BYTES):
                self._socket.sendall(view[begin:begin + _PIECE_BYTES])

    def receive(self, most: int) -> bytearray:
        (size,) = struct.unpack("<Q", self._receive(8))
        if size > most:
            raise ConnectionError("it does not know the secret of this job, or sends too much")
        code = self._receive(_CODE_BYTES)
        data = self._receive(size)
        if not hmac.compare_digest(code, self._code(1, data)):
            raise ConnectionError("it does not know the secret of this job")
        return data

    def _code(self, way: int, *parts: Union[bytes, bytearray]) -> bytes:
        code = hmac.new(self._key, self._names[way] + struct.pack("<Q", self._counts[way]),
                        hashlib.sha256)
        self._counts[way] += 1
        for part in parts:
            code.update(part)
        return code.digest()

    def _receive(self, count: int) -> bytearray:
        data = bytearray(count)
        rest = memoryview(data)
        while len(rest) > 0:
            received = self._socket.recv_into(rest)
            if received == 0:
                raise ConnectionError("it closed the connection")
            rest = rest[received:]
        return data


class Exchange:
    """The side of the process that called `launch`.

    Parameters
    ----------
    call
        What each worker gets.
    addresses
        Those under which workers may reach this process.
    is_remote
        Connections may come from other hosts.
    """

    def __init__(self, call: bytes, addresses: list[str], is_remote: bool) -> None:
        self._call = call
        self._secret = secrets.token_hex(32)
        self._results: dict[tuple[int, int], Union[bytes, memoryview]] = {}
        self._lock = threading.Lock()
        self._slots = threading.Semaphore(_MOST_CONNECTIONS)
        self._is_closed = False
        if not is_remote:
            self._listener = socket.create_server(("127.0.0.1", 0), backlog=_MOST_CONNECTIONS)
        elif socket.has_dualstack_ipv6():
            self._listener = socket.create_server(
                ("::", 0), family=socket.AF_INET6, dualstack_ipv6=True, backlog=_MOST_CONNECTIONS)
        else:
            self._listener = socket.create_server(("", 0), backlog=_MOST_CONNECTIONS)
        port = self._listener.getsockname()[1]
        self.place = " ".join([self._secret, str(port), *addresses])
        threading.Thread(target=self._accept, daemon=True, name="ddprun-launch").start()

    def __enter__(self) -> Exchange:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> dict[tuple[int, int], Union[bytes, memoryview]]:
        """Accepts no connection any more. Returns what has come, by generation and rank."""
        if not self._is_closed:
            self._is_closed = True
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)  # else accept() goes on
            self._listener.close()
        with self._lock:
            return dict(self._results)

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                if self._is_closed:
                    return
                time.sleep(_FULL_PAUSE)
                continue
            if self._slots.acquire(blocking=False):
                threading.Thread(target=self._serve, args=(connection,), daemon=True,
                                 name="ddprun-launch").start()
            else:
                connection.close()

    def _serve(self, connection: socket.socket) -> None:
        try:
            with connection, contextlib.suppress(OSError, MemoryError, struct.error):
                peer = _Connection(connection, self._secret.encode(), is_server=True)
                request = peer.receive(_HEAD.size + 1 + MAX_BYTES)
                kind, generation, rank = _HEAD.unpack_from(request)
                if kind == _PUT:
                    with self._lock:
                        self._results[generation, rank] = memoryview(request)[_HEAD.size:]
                    peer.send(b"")
                    return
                with self._lock:
                    self._results.setdefault((generation, rank), _NO_RESULT)
                peer.send(self._call)
        finally:
            self._slots.release()


class Client:
    """The side of a worker. The address is taken out of its environment."""

    def __init__(self, generation: int, rank: int) -> None:
        self._place = (generation, rank)
        secret, port, *addresses = os.environ.pop(PLACE_VARIABLE).split()
        self._secret = secret.encode()
        self._addresses = [(address, int(port)) for address in addresses]

    def call(self) -> bytearray:
        """Returns the call. From then on this rank has the result None."""
        with self._connected() as peer:
            peer.send(_HEAD.pack(_GET, *self._place))
            return peer.receive(MAX_BYTES)

    def send(self, kind: bytes, result: bytes) -> None:
        """Sends a result of a kind, SUCCEEDED or FAILED, and waits until it has arrived.

        Raises
        ------
        ValueError
            It is too large.
        OSError
            The process that called `launch` cannot be reached.
        """
        if len(result) > MAX_BYTES:
            raise ValueError(f"launch: the result has {len(result)} bytes, {MAX_BYTES} is the most "
                             "that is sent (write it into a file, and return the file's name)")
        with self._connected() as peer:
            peer.send(_HEAD.pack(_PUT, *self._place) + kind, result)
            peer.receive(0)

    def _connected(self) -> _Connection:
        failures = []
        for address in self._addresses:
            try:
                connection = socket.create_connection(address, _PATIENCE)
            except OSError as error:
                failures.append(f"{address[0]}: {error}")
                continue
            try:
                peer = _Connection(connection, self._secret, is_server=False)
            except OSError as error:
                connection.close()
                failures.append(f"{address[0]}: {error}")
                continue
            self._addresses = [address]  # the others need not be tried again
            return peer
        raise ConnectionError(
            f"{socket.gethostname()} cannot reach the process that called launch, at port "
            f"{self._addresses[0][1]} of {'; '.join(failures)} (workers bring their results there "
            "over TCP: open its firewall for them, or call launch on one of the hosts)")


def own_addresses(hosts: Optional[str], hostfile: Union[str, os.PathLike[str], None]) -> list[str]:
    """Returns the addresses of this host on the routes to other hosts, most likely first."""
    names = hosts.split(",") if hosts else []
    if hostfile is not None:
        with contextlib.suppress(OSError, UnicodeError), open(hostfile, encoding="utf-8") as file:
            names += [line.split("#")[0].split()[0] for line in file if line.split("#")[0].split()]
    found: list[str] = []
    names = [*map(_without_slots, names[:_MOST_PROBED]), "192.0.2.1"]  # the default route
    for name in names:
        with contextlib.suppress(OSError, ValueError):  # also UnicodeError, of a name like a..b
            for family, kind, _, _, where in socket.getaddrinfo(name, 22, type=socket.SOCK_DGRAM):
                with contextlib.suppress(OSError), socket.socket(family, kind) as probe:
                    probe.connect(where)  # of a datagram socket it sends nothing
                    found.append(str(probe.getsockname()[0]))
    is_loopback = [one.startswith("127.") or one == "::1" for one in found]
    ordered = [one for one, is_own in zip(found, is_loopback) if not is_own]
    return list(dict.fromkeys([*ordered, "127.0.0.1"]))


def _without_slots(host: str) -> str:
    """Returns the name in ``me@host:4`` or ``[2001:db8::1]:4``."""
    name = host.strip().rpartition("@")[2]
    return name[1:].partition("]")[0] if name.startswith("[") else name.partition(":")[0]
