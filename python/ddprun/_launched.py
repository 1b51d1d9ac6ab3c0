"""The program of the workers of `ddprun.launch`: calls the function, and writes its result."""

from __future__ import annotations

import importlib
import os
import pathlib
import pickle
import sys
import traceback
from typing import Any

from ddprun._environment import Environment
from ddprun._launch import CALL_FILE, result_file
from ddprun._record import record


class _Results:
    """Writes the result of this rank. A later one replaces it."""

    def __init__(self, folder: str) -> None:
        environment = Environment.current()
        self._file = result_file(folder, environment.generation, environment.rank)
        self.pickler: Any = pickle

    def write(self, succeeded: bool, value: Any) -> None:
        data = self.pickler.dumps((succeeded, value))
        unfinished = self._file.with_suffix(".unfinished")
        unfinished.write_bytes(data)
        os.replace(unfinished, self._file)

    def can_be_sent(self, error: Exception) -> bool:
        """Returns whether the exception can be pickled and made again from that."""
        try:
            pickle.loads(self.pickler.dumps(error))
        except Exception:  # whatever the class of the exception does
            return False
        return True


def _run(folder: str, results: _Results) -> None:
    with (pathlib.Path(folder) / CALL_FILE).open("rb") as file:
        sys.path[:], pickler = pickle.load(file)
        results.pickler = importlib.import_module(pickler)
        function, args = pickle.load(file)
    result = function(*args)
    try:
        results.write(True, result)
    except Exception as error:  # whatever the classes in the result do
        raise TypeError(f"launch: the result cannot be pickled: {error}") from error


@record
def main() -> None:
    """Calls the function of the call file in the folder that the command line names."""
    folder = sys.argv[1]
    results = _Results(folder)
    results.write(True, None)  # the result if the function ends the process, as sys.exit(0) does
    try:
        _run(folder, results)
    except Exception as error:
        sent: Exception = error
        if not results.can_be_sent(error):
            sent = RuntimeError(f"{type(error).__name__}: {error}")
        results.write(False, (sent, traceback.format_exc()))
        raise


if __name__ == "__main__":
    main()
