#!/usr/bin/env python3
"""Checks that programs are hardened and start fast: hardening_test.py PROGRAM...

Each program must have full RELRO, stack protectors, fortified libc calls and the C++ library's
assertions. Its thread-local variables must be few, because they are cleared at the start of each
thread. Prints one line for each property that a program lacks.
"""
import pathlib
import re
import subprocess
import sys


def readelf(option, program):
    return subprocess.run(["readelf", "-W", option, program], capture_output=True, text=True,
                          check=True).stdout


MOST_THREAD_LOCAL_BYTES = 4096


def thread_local_bytes(segments):
    found = re.search(r"^ *TLS(?: +0x[0-9a-f]+){4} +(0x[0-9a-f]+)", segments, re.M)
    return int(found[1], 16) if found else 0


def missing_protections(program):
    segments, dynamic, symbols = (readelf(option, program) for option in ("-l", "-d", "-s"))
    protections = {
        "RELRO (-z relro)": re.search(r"GNU_RELRO", segments),
        "binding of all symbols at start (-z now)": re.search(r"BIND_NOW|FLAGS_1.*NOW", dynamic),
        "stack protectors (-fstack-protector-strong)": re.search(r"__stack_chk_fail", symbols),
        "fortified calls (_FORTIFY_SOURCE)":
            re.search(r"__(mem\w+|str\w+|read|recv|s?v?n?printf)_chk@", symbols),
        # If the symbol was stripped, the texts of assertions in std::vector or std::string
        # remain.
        "assertions of the C++ library (_GLIBCXX_ASSERTIONS)":
            re.search(r"__glibcxx_assert_fail", symbols)
            or re.search(rb"__n < this->size\(\)|__pos <= size\(\)",
                         pathlib.Path(program).read_bytes()),
        f"a limit of its thread-local variables ({MOST_THREAD_LOCAL_BYTES} bytes)":
            thread_local_bytes(segments) <= MOST_THREAD_LOCAL_BYTES,
    }
    return [name for name, found in protections.items() if not found]


def main():
    if len(sys.argv) < 2:
        sys.exit("usage: hardening_test.py PROGRAM...")
    failed = False
    for program in sys.argv[1:]:
        for protection in missing_protections(program):
            print(f"{program}: lacks {protection}")
            failed = True
    sys.exit(failed)


main()
