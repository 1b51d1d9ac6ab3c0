"""A client of the store of this generation, without PyTorch: the calls that this package makes.

The store speaks the wire protocol of PyTorch's TCPStore, so PyTorch's clients see the same keys.
"""

from __future__ import annotations

import socket
import struct
import time
from typing import Optional

from ddprun._environment import Environment

_VALIDATE, _SET, _GET, _ADD, _CHECK, _WAIT, _DELETE = 0, 1, 3, 4, 5, 6, 8
_MAGIC = 0x3C85F7CE


def _text(value: str) -> bytes:
    data = value.encode()
    return struct.pack("<Q", len(data)) + data


def _key(name: str) -> bytes:
    return _text("/" + name)


class StoreClient:
    """One connection. One thread at a time uses it.

    Every method raises `OSError` if the connection breaks, and `TimeoutError` if the store does
    not answer in time. After either the connection is closed. Both texts name the address.
    """

    def __init__(self, environment: Environment, timeout: float) -> None:
        self._address = f"{environment.master_addr}:{environment.master_port}"
        self._timeout = timeout
        self._socket: Optional[socket.socket] = self._connect(environment)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._ask(struct.pack("<BI", _VALIDATE, _MAGIC), 0, timeout)

    def set(self, key: str, value: str) -> None:
        """Sets a key, and waits until that is done."""
        self._ask(struct.pack("<B", _SET) + _key(key) + _text(value), 0, self._timeout)
        # A SET has no answer. The answer to the next request shows that it was carried out.
        self._ask(struct.pack("<BQ", _CHECK, 1) + _key(key), 1, self._timeout)

    def add(self, key: str, amount: int) -> int:
        """Adds to a counter, which begins at 0. Returns its new value."""
        request = struct.pack("<B", _ADD) + _key(key) + struct.pack("<q", amount)
        return int(struct.unpack("<q", self._ask(request, 8, self._timeout))[0])

    def delete(self, key: str) -> None:
        """Deletes a key, if it is there."""
        self._ask(struct.pack("<B", _DELETE) + _key(key), 8, self._timeout)

    def wait(self, key: str, timeout: float) -> str:
        """Waits until a key is set. Returns its value."""
        self._ask(struct.pack("<BQ", _WAIT, 1) + _key(key), 1, timeout)
        head = self._ask(struct.pack("<B", _GET) + _key(key), 8, self._timeout)
        return self._receive(struct.unpack("<Q", head)[0], self._timeout).decode()

    def close(self) -> None:
        """Closes the connection."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self, environment: Environment) -> socket.socket:
        try:
            return socket.create_connection((environment.master_addr, environment.master_port),
                                            self._timeout)
        except (socket.timeout, TimeoutError):  # Python 3.9 has two classes
            raise TimeoutError(f"connect to the store at {self._address}: no answer within "
                               f"{self._timeout:g} s") from None
        except OSError as error:
            raise ConnectionError(f"connect to the store at {self._address}: {error}") from error

    def _ask(self, request: bytes, answer_bytes: int, timeout: float) -> bytes:
        connection = self._connected()
        try:
            connection.settimeout(timeout)
            connection.sendall(request)
        except OSError as error:
            raise self._closed_by(error, timeout) from error
        return self._receive(answer_bytes, timeout)

    def _receive(self, count: int, timeout: float) -> bytes:
        connection = self._connected()
        deadline = time.monotonic() + timeout
        received = b""
        try:
            while len(received) < count:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise socket.timeout
                connection.settimeout(left)
                more = connection.recv(count - len(received))
                if not more:
                    raise ConnectionError("it closed the connection")
                received += more
        except OSError as error:
            raise self._closed_by(error, timeout) from error
        return received

    def _closed_by(self, error: OSError, timeout: float) -> OSError:
        """Closes the connection. Returns what is raised for the error."""
        self.close()
        if isinstance(error, (socket.timeout, TimeoutError)):
            return TimeoutError(
                f"the store at {self._address} did not answer within {timeout:g} s")
        return ConnectionError(f"the store at {self._address}: {error}")

    def _connected(self) -> socket.socket:
        if self._socket is None:
            raise ConnectionError(f"the connection to the store at {self._address} is closed")
        return self._socket
