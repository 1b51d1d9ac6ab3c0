"""What a training tells while it runs, and what scripts/plot-metrics makes of it.

Usage: metrics_test.py BIN_DIR
"""

import fcntl
import json
import os
import pathlib
import pty
import struct
import subprocess
import sys
import tempfile
import termios
import unittest

BIN = pathlib.Path(sys.argv.pop())
PLOT = pathlib.Path(__file__).parents[2] / "scripts" / "plot-metrics"


def on_a_terminal(command, columns=0):
    """Returns the exit code and the output of a command whose stdout is a terminal.

    columns: 0 for a terminal that does not know its width.
    """
    try:
        ours, theirs = pty.openpty()
    except OSError as why:
        raise unittest.SkipTest(f"no pseudo terminal: {why}") from None
    fcntl.ioctl(theirs, termios.TIOCSWINSZ,
                struct.pack("HHHH", 24 if columns else 0, columns, 0, 0))
    with subprocess.Popen(command, stdout=theirs, stdin=subprocess.DEVNULL) as process:
        os.close(theirs)
        output = b""
        while True:
            try:
                piece = os.read(ours, 65536)
            except OSError:  # the other side is closed
                break
            if not piece:
                break
            output += piece
        os.close(ours)
        return process.wait(timeout=60), output.decode()


class Metrics(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def plot(self, *arguments):
        return subprocess.run([sys.executable, PLOT, *arguments], capture_output=True, text=True,
                              timeout=60, cwd=self.folder)

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def test_a_terminal_shows_a_bar_and_the_file_has_a_line_for_each_epoch(self):
        for example, names in (("mnist_convnet", ["loss", "test_loss", "accuracy"]),
                               ("train_digits", ["loss", "accuracy"])):
            file = self.folder / f"{example}.jsonl"
            code, output = on_a_terminal([BIN / example, "--epochs=2", f"--metrics={file}"])
            self.assertEqual(code, 0, output)
            self.assertRegex(output, r"\r\x1b\[Kepoch 1 \[=* *\] \d+/45  loss ")
            self.assertRegex(output, r"45/45  loss \d+\.\d+  \d+ samples/s  0 s left")
            lines = [json.loads(line) for line in file.read_text().splitlines()]
            self.assertEqual([line["epoch"] for line in lines], [1, 2])
            self.assertEqual([line["step"] for line in lines], [45, 90])
            for line in lines:
                self.assertEqual(list(line),
                                 ["epoch", "step", "seconds", "samples_per_second"] + names)
                self.assertGreater(line["samples_per_second"], 0)
                self.assertGreater(line["seconds"], 0)
                for name in names:
                    self.assertIsInstance(line[name], float)

    def test_no_bar_is_wider_than_the_terminal(self):
        code, output = on_a_terminal([BIN / "train_digits", "--epochs=1"], columns=44)
        self.assertEqual(code, 0, output)
        bars = [update.split("\r")[0] for update in output.split("\r\x1b[K") if "/45" in update]
        self.assertGreater(len(bars), 1)
        for bar in bars:
            self.assertLess(len(bar), 44, bar)
        self.assertTrue(output.rstrip("\r\n").splitlines()[-1].startswith("sha256 "), output)

    def test_plots_are_drawn_of_several_runs(self):
        one = '{"epoch":1,"loss":2.0,"accuracy":0.5}\n{"epoch":2,"loss":1.0,"accuracy":0.7}\n'
        a, b = self.write("a.jsonl", one), self.write("b.jsonl", one + '{"epoch":3,"lo')
        done = self.plot(a, b, "-o", "out.png")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "out.png\n", ""))
        picture = (self.folder / "out.png").read_bytes()
        self.assertTrue(picture.startswith(b"\x89PNG\r\n"))
        self.assertGreater(len(picture), 10_000)

    def test_trainings_that_count_steps_are_drawn_too(self):
        line = '{"step":%d,"loss":2.0,"val_loss":2.1}\n'
        path = self.write("steps.jsonl", line % 250 + line % 500)
        done = self.plot(path, "-o", "out.png")
        self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "out.png\n", ""))

    def test_what_a_run_did_not_measure_is_left_out(self):
        numbers = self.write("a/m.jsonl", '{"epoch":1,"loss":null}\n{"epoch":2,"loss":1.0}\n')
        both = self.write("b/m.jsonl", '{"epoch":1,"loss":2.0,"accuracy":0.5}\n')
        widths = []
        for files in ([numbers], [numbers, both]):
            self.assertEqual(self.plot(*files, "-o", "out.png").stderr, "")
            widths.append(struct.unpack(">I", (self.folder / "out.png").read_bytes()[16:20])[0])
        self.assertEqual(widths, [660, 1320])
        nothing = self.plot(self.write("time.jsonl", '{"epoch":1,"seconds":2.0}\n'))
        self.assertEqual(nothing.stderr,
                         "plot-metrics: there is neither loss nor accuracy in time\n")

    def test_what_is_no_metrics_file_is_named(self):
        bad = self.write("bad.jsonl", '{"epoch":1}\nnonsense\n{"epoch":2}\n')
        empty = self.write("empty.jsonl", "")
        for path, words in ((bad, "bad.jsonl:2: not a line of metrics: 'nonsense'"),
                            (empty, "empty.jsonl has no epochs"),
                            ("/nowhere/x.jsonl", "cannot read /nowhere/x.jsonl")):
            done = self.plot(path)
            self.assertEqual(done.returncode, 1)
            self.assertIn(words, done.stderr)
            self.assertNotIn("Traceback", done.stderr)


if __name__ == "__main__":
    unittest.main()
