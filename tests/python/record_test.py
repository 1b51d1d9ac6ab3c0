"""Tests ddprun.record: it writes what PyTorch's record writes, and ddprun reports it."""
import json
import sys
import typing

import frame
import needs

import ddprun

needs.module("torch")
# Runs main() under both decorators, or under the one of sys.argv[2]. argv[1] is the error file.
PROGRAM = """
import json, os, sys, time, warnings
time.time = lambda: 1795231266.5
def decorators():
    import ddprun
    yield "ddprun", ddprun.record
    assert "torch" not in sys.modules
    from torch.distributed.elastic.multiprocessing.errors import record
    yield "torch", record
def main(what):
    if what == "chained":
        try:
            {}["key"]
        except KeyError as error:
            raise ValueError("bad step \\u00e9 \\n 3") from error
    if what == "context":
        try:
            {}["key"]
        except KeyError:
            raise RuntimeError
    if what.startswith("exit"):
        raise SystemExit(eval(what[4:]))
    if what == "interrupt":
        raise KeyboardInterrupt
    if what == "child":
        from torch.distributed.elastic.multiprocessing.errors import (
            ChildFailedError, ProcessFailure)
        with open("child.json", "w") as file:
            json.dump({"message": {"message": "KeyError", "extraInfo": {"timestamp": "7"}}}, file)
        raise ChildFailedError("train", {3: ProcessFailure(0, 1, 9, "child.json")})
    return what, 7
told = {}
for name, record in decorators():
    told[name] = {}
    for what in ("chained", "context", "exit0", "exit3", "exit'text'", "exit None", "interrupt",
                 "result", "child"):
        if name == "ddprun" and what == "child":
            continue
        os.environ["TORCHELASTIC_ERROR_FILE"] = f"{name}.json"
        told[name][what] = run(record, what, name)
    if name == "torch":
        import ddprun
        told["ddprun"]["child"] = run(ddprun.record, "child", name)
print(json.dumps(told))
"""
RUN = '''
def run(record, what, name):
    if os.path.exists(f"{name}.json"):
        os.remove(f"{name}.json")
    try:
        end = record(main)(what)
    except BaseException as error:
        end = repr(error)
    written = None
    if os.path.exists(f"{name}.json"):
        with open(f"{name}.json") as file:
            written = json.load(file)
    return [end, written]
'''


class Record(frame.Test):
    def test_it_writes_and_returns_what_that_of_pytorch_does(self):
        script = self.script(PROGRAM.replace("told = {}\n", RUN + "told = {}\n"))
        told = json.loads(frame.run([sys.executable, script], cwd=self.folder).splitlines()[-1])
        ours, torchs = told["ddprun"], told["torch"]
        self.assertEqual(set(ours), set(torchs))
        for what, (end, written) in torchs.items():
            if written and "py_callstack" in written["message"]["extraInfo"]:
                # The frame of the decorator differs.
                stacks = [one[1]["message"]["extraInfo"].pop("py_callstack")
                          for one in (ours[what], torchs[what])]
                lines = [[line for line in stack.splitlines() if "File" not in line
                          and "function(*args" not in line and "f(*args" not in line
                          and "^^^" not in line] for stack in stacks]
                self.assertEqual(*lines)
                self.assertIn("KeyError: 'key'", stacks[0])
            self.assertEqual(ours[what], [end, written], what)
        self.assertTrue(ours["chained"][1] and ours["context"][1] and ours["child"][1])
        self.assertIsNone(ours["exit3"][1])

    def test_ddprun_reports_the_exception_with_its_cause(self):
        script = self.script("""
            import ddprun
            @ddprun.record
            def main():
                try:
                    open("missing")
                except OSError as error:
                    raise ValueError("no data") from error
            main()
        """)
        said = self.job(["--report-file=report.json", script]).end(1)
        self.assertIn("ValueError: no data", said)
        report = json.loads((self.folder / "report.json").read_text())
        self.assertIn("ValueError: no data", json.dumps(report))

    def test_its_types_are_known_at_run_time(self):
        self.assertEqual(set(typing.get_type_hints(ddprun.record)), {"function", "return"})

    def test_without_an_error_file_the_exception_is_the_same(self):
        said = frame.run([sys.executable, "-c", """
import ddprun
@ddprun.record
def main(): raise ValueError("no data")
main()"""], code=1)
        self.assertTrue(said.endswith("ValueError: no data\n"), said)

    def test_an_error_file_that_cannot_be_written_hides_no_exception(self):
        said = frame.run([sys.executable, "-c", """
import ddprun
@ddprun.record
def main(): raise ValueError("no data")
main()"""], code=1, env=frame.environment(TORCHELASTIC_ERROR_FILE="/nowhere/error.json",
                                          PYTHONWARNINGS="always"))
        self.assertTrue(said.endswith("ValueError: no data\n"), said)
        self.assertIn("RuntimeWarning: record: write the error file /nowhere/error.json", said)


frame.main()
