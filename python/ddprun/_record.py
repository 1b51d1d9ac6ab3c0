"""Writes the error file of this worker, as PyTorch's ``record`` does."""

from __future__ import annotations

import faulthandler
import functools
import json
import os
import sys
import time
import traceback
import warnings
from typing import TYPE_CHECKING, Callable, Optional, TypeVar

if TYPE_CHECKING:
    from typing import ParamSpec

    _Arguments = ParamSpec("_Arguments")
else:
    _Arguments = ...  # for get_type_hints() on Python 3.9, which has no ParamSpec
_Result = TypeVar("_Result")

_ERRORS_OF_TORCH = "torch.distributed.elastic.multiprocessing.errors"


def record(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, Optional[_Result]]:
    """Makes a program's main function write its exception into the worker's error file.

    The launcher then shows the exception, with its traceback, in the report of the failure. It
    behaves as ``torch.distributed.elastic.multiprocessing.errors.record``: the exception goes on,
    an exit with code 0 returns None, and any other exit writes nothing. It needs no PyTorch.

    Parameters
    ----------
    function
        The main function. Decorate one function of a process.

    Returns
    -------
    Callable
        A function with the same parameters.

    Examples
    --------
    >>> @ddprun.record
    ... def main():
    ...     train()
    """

    @functools.wraps(function)
    def recorded(*args: _Arguments.args, **options: _Arguments.kwargs) -> Optional[_Result]:
        try:
            faulthandler.enable(all_threads=True)
        except (OSError, ValueError, RuntimeError, AttributeError) as error:
            # stderr may be no file, as in a notebook.
            warnings.warn(f"record: the fault handler cannot be enabled: {error}", RuntimeWarning,
                          stacklevel=2)
        try:
            return function(*args, **options)
        except SystemExit as end:
            if end.code == 0:
                return None
            raise
        except Exception as error:
            if not _passed_on_by_torch(error):
                _write(error)
            raise

    return recorded


def _write(error: Exception) -> None:
    path = os.environ.get("TORCHELASTIC_ERROR_FILE")
    if not path:
        return
    message = {
        "message": f"{type(error).__name__}: {error}",
        "extraInfo": {
            "py_callstack": traceback.format_exc(),
            "timestamp": str(int(time.time())),
        },
    }
    try:
        with open(path, "w", encoding="utf-8") as file:
            json.dump({"message": message}, file)
    except OSError as failure:
        warnings.warn(f"record: write the error file {path}: {failure}", RuntimeWarning,
                      stacklevel=3)


def _passed_on_by_torch(error: Exception) -> bool:
    """Returns whether the error is that of a child of a PyTorch launcher in this process.

    PyTorch then writes the child's error file into that of this process.
    """
    module = sys.modules.get(_ERRORS_OF_TORCH)
    if module is None or not isinstance(error, module.ChildFailedError):
        return False
    failure = error.get_first_failure()[1]
    if os.path.isfile(failure.error_file):
        module.get_error_handler().dump_error_file(failure.error_file, failure.exitcode)
    return True
