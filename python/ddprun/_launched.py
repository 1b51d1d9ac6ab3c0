"""The program of the workers of `ddprun.launch`: calls the function, and sends its result."""

from __future__ import annotations

import importlib
import pickle
import sys
import traceback
from typing import Any

from ddprun._environment import Environment
from ddprun._exchange import FAILED, SUCCEEDED, Client
from ddprun._record import record


class _Results:
    """Sends the result of this rank. A later one replaces it."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self.pickler: Any = pickle

    def send(self, value: Any) -> None:
        try:
            data = self.pickler.dumps(value)
        except Exception as error:  # whatever the classes in the result do
            raise TypeError(f"launch: the result cannot be pickled: {error}") from error
        self._client.send(SUCCEEDED, data)

    def send_failure(self, error: Exception, text: str) -> None:
        self._client.send(FAILED, pickle.dumps((self._pickled(error), text)))

    def _pickled(self, error: Exception) -> bytes:
        """Returns the exception; its text as one, if it cannot be made again from the bytes."""
        try:
            data: bytes = self.pickler.dumps(error)
            pickle.loads(data)
        except Exception:  # whatever the class of the exception does
            return pickle.dumps(RuntimeError(f"{type(error).__name__}: {error}"))
        return data


def _run(call: bytearray, results: _Results) -> None:
    sys.path[:], pickler, pickled = pickle.loads(call)
    try:
        results.pickler = importlib.import_module(pickler)
        function, args = pickle.loads(pickled)
    except Exception as error:  # whatever the modules of the function do
        raise RuntimeError(f"launch: the function cannot be loaded on this worker: "
                           f"{type(error).__name__}: {error}") from error
    results.send(function(*args))


@record
def main() -> None:
    """Gets the call from the process that called `launch`, and sends the result there."""
    environment = Environment.current()
    client = Client(environment.generation, environment.rank)
    try:
        call = client.call()
    except OSError as error:
        sys.exit(f"launch: rank {environment.rank}: {error}")
    results = _Results(client)
    try:
        _run(call, results)
    except Exception as error:
        try:
            results.send_failure(error, traceback.format_exc())
        except OSError:
            pass  # the launcher reports the exception itself
        raise


if __name__ == "__main__":
    main()
