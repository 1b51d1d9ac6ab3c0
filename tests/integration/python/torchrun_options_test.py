"""Checks that ddprun, and docs/reference/torchrun.md, know every option of PyTorch's torchrun.

argv[1]: the folder of the programs. argv[2]: the folder of the sources.
"""
import pathlib
import subprocess
import sys

sys.path.append(f"{sys.path[0]}/../../support")
import needs  # noqa: E402

# The values of options for which "1" is not valid.
VALUES = {"--rdzv-backend": "c10d", "--start-method": "spawn", "--event-log-handler": "null",
          "--logs-specs": "default", "--rdzv-conf": "", "--numa-binding": "node",
          "--signals-to-handle": "SIGTERM,SIGINT,SIGHUP,SIGQUIT"}


def answer_to(ddprun: pathlib.Path, *options: str) -> str:
    """Returns ddprun's answer to these options. A program is missing, so it never starts
    anything."""
    result = subprocess.run([ddprun, *options], capture_output=True, text=True, timeout=20,
                            check=False)
    assert result.returncode == 2, (options, result)
    return result.stderr


def main() -> None:
    needs.module("torch")
    from torch.distributed.run import get_args_parser

    ddprun = pathlib.Path(sys.argv[1]) / "ddprun"
    page = (pathlib.Path(sys.argv[2]) / "docs" / "reference" / "torchrun.md").read_text()
    rows = [line for line in page.split("\n") if line.startswith("| `-")]
    assert "unknown option" in answer_to(ddprun, "--no-such-option")
    known = 0
    for action in get_args_parser()._actions:
        for name in action.option_strings:
            if name in ("-h", "--help"):
                continue
            dashed = name if len(name) == 2 else "--" + name[2:].replace("_", "-")
            value = [] if action.nargs == 0 else [VALUES.get(dashed, "1")]
            said = answer_to(ddprun, name, *value)
            row = [line for line in rows if f"`{dashed}`" in line.split("|")[1]]
            assert len(row) == 1, f"docs/reference/torchrun.md has {len(row)} rows for {dashed}"
            refused = " of torchrun is not supported: " in said
            assert (refused or "the program is missing" in said
                    or "the module is missing" in said), (name, said)
            assert refused == (row[0].split("|")[2].strip() == "refused"), (said, row)
            known += 1
    print(f"{known} spellings of torchrun's options are known")
    assert known >= 50, known


main()
