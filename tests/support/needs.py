"""Requirements of a Python test. If one is missing, the test is skipped and prints the reason."""
import importlib.util
import os
import socket
import sys
import unittest


def skip(reason: str) -> None:
    """Ends the program with 77, which ctest shows as skipped."""
    print(f"skipped: {reason}")
    sys.exit(77)


def module(name: str, remedy: str = "") -> None:
    """Skips the test if there is no such module."""
    if importlib.util.find_spec(name) is None:
        skip(f"this python has no {name}{remedy}")


def localhost() -> None:
    """Skips the test if the name localhost leads to no address."""
    try:
        socket.getaddrinfo("localhost", None)
    except OSError:
        skip("this machine has no localhost in /etc/hosts")


def whole() -> bool:
    """Returns whether everything is tested, and not a sample (tests/support/whole.h)."""
    return "DDPRUN_TEST_WHOLE" in os.environ


# A decorator of unittest's tests that are not in the sample.
the_whole = unittest.skipUnless(whole(), "not in the sample; the ctest NAME_whole runs it")
