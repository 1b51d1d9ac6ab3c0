"""Writes options of the command line that are given as arguments of a function."""

from __future__ import annotations

import os
from typing import Any, Mapping


def to_words(options: Mapping[str, Any]) -> list[str]:
    """Returns the words of the command line.

    Parameters
    ----------
    options
        Values by name. ``max_restarts=3`` is ``--max-restarts=3``; True is an option without a
        value; None and False: the option is not given; a list repeats it.
    """
    words = []
    for name, value in options.items():
        option = "--" + name.replace("_", "-")
        for one in value if isinstance(value, (list, tuple)) else [value]:
            if one is True:
                words.append(option)
            elif one is not None and one is not False:
                words.append(f"{option}={os.fspath(one) if isinstance(one, os.PathLike) else one}")
    return words
