"""Tests the event files of ddprun::SummaryWriter with TensorBoard's own reader.

- Events of all kinds are what torch.utils.tensorboard writes for the same data.
- Of a writer that was killed, every event that it had flushed is there, and the rest is readable.
- After restarts no step is seen twice, and none is missing.
- A request to save writes at once.

argv: the folder of the programs.
"""
import io
import logging
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time
import unittest

sys.path.append(f"{sys.path[0]}/../../support")
import needs  # noqa: E402

for name in ("torch", "numpy", "tensorboard", "PIL"):
    needs.module(name, " (scripts/setup --tests installs it)")
import numpy as np
import PIL.Image
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.plugins.hparams import plugin_data_pb2
from torch.utils.tensorboard import SummaryWriter

logging.getLogger("tensorboard").setLevel(logging.ERROR)  # it tells of each restart
PROGRAM = pathlib.Path(sys.argv.pop(1)) / "summary_test_program"


def read(directory: str) -> event_accumulator.EventAccumulator:
    events = event_accumulator.EventAccumulator(
        str(directory), size_guidance=event_accumulator.STORE_EVERYTHING_SIZE_GUIDANCE)
    return events.Reload()


def write_with_pytorch(directory: str) -> None:
    """Writes what write_all_kinds() in tests/worker_lib/tensorboard/main.cc writes."""
    writer = SummaryWriter(directory)
    for step in range(5):
        writer.add_scalar("loss", 1.0 / (step + 1), step)
    writer.add_scalar("other", -2.5, 3)
    numbers = np.arange(1000) ** 2 % 997 - 400
    writer.add_histogram("floats", (numbers / 8).astype(np.float32), 1)
    writer.add_histogram("doubles", np.concatenate([[-1e-13, 0, 1e-12, 1e15], numbers * 1e-7]), 2)
    writer.add_histogram("one", np.ones(1), 2)
    writer.add_text("notes", "**bold** ä", 4)
    writer.add_text("notes", "second", 5)
    pixels = (np.arange(3 * 150 * 200) * 7 % 256).astype(np.uint8)
    writer.add_image("chw", pixels.reshape(3, 150, 200), 1)
    writer.add_image("hwc", pixels.reshape(150, 200, 3), 1, dataformats="HWC")
    fractions = np.arange(120).astype(np.float32) / np.float32(100) - np.float32(0.1)
    writer.add_image("rgba", fractions.reshape(4, 5, 6), 1)
    writer.add_image("grey", fractions[:30].reshape(1, 5, 6), 1)
    writer.add_hparams({"lr": 0.1, "layers": 3, "optimizer": "adam"},
                       {"accuracy": 0.75, "final loss": 0.25}, run_name=".")
    writer.close()


def hparams(events: event_accumulator.EventAccumulator, tag: str) -> plugin_data_pb2:
    metadata = events.summary_metadata["_hparams_/" + tag]
    assert metadata.plugin_data.plugin_name == "hparams"
    return plugin_data_pb2.HParamsPluginData.FromString(metadata.plugin_data.content)


class TensorBoardTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def test_all_kinds_are_those_of_pytorch(self):
        ours, theirs = str(self.folder / "ours"), str(self.folder / "theirs")
        before = time.time()
        subprocess.run([PROGRAM, "all", ours], check=True)
        after = time.time()
        write_with_pytorch(theirs)
        ours, theirs = read(ours), read(theirs)
        for kind in ("scalars", "histograms", "images", "tensors"):
            self.assertEqual(sorted(ours.Tags()[kind]), sorted(theirs.Tags()[kind]), kind)
            self.assertTrue(ours.Tags()[kind], kind)
        for tag in theirs.Tags()["scalars"]:
            self.assertEqual([(e.step, e.value) for e in ours.Scalars(tag)],
                             [(e.step, e.value) for e in theirs.Scalars(tag)], tag)
            for event in ours.Scalars(tag):
                self.assertTrue(before <= event.wall_time <= after, event)
        for tag in theirs.Tags()["histograms"]:
            self.compare_histograms(ours.Histograms(tag), theirs.Histograms(tag))
        for tag in theirs.Tags()["images"]:
            self.compare_images(ours.Images(tag), theirs.Images(tag))
        for tag in theirs.Tags()["tensors"]:
            self.assertEqual([(e.step, e.tensor_proto) for e in ours.Tensors(tag)],
                             [(e.step, e.tensor_proto) for e in theirs.Tensors(tag)])
        self.assertEqual(sorted(ours.summary_metadata), sorted(theirs.summary_metadata))
        text = "notes/text_summary"
        self.assertEqual(ours.summary_metadata[text], theirs.summary_metadata[text])
        self.compare_hparams(ours, theirs)

    def compare_histograms(self, ours, theirs):
        self.assertEqual([e.step for e in ours], [e.step for e in theirs])
        for one, other in zip(ours, theirs):
            one, other = one.histogram_value, other.histogram_value
            self.assertEqual(list(one.bucket_limit), list(other.bucket_limit))
            self.assertEqual(list(one.bucket), list(other.bucket))
            self.assertEqual((one.min, one.max, one.num), (other.min, other.max, other.num))
            np.testing.assert_allclose([one.sum, one.sum_squares], [other.sum, other.sum_squares],
                                       rtol=1e-12)

    def compare_images(self, ours, theirs):
        """Compares pixels. PyTorch stores a grey image as RGB."""
        self.assertEqual([(e.step, e.width, e.height) for e in ours],
                         [(e.step, e.width, e.height) for e in theirs])
        for one, other in zip(ours, theirs):
            PIL.Image.open(io.BytesIO(one.encoded_image_string)).verify()  # the checksums
            one, other = (PIL.Image.open(io.BytesIO(e.encoded_image_string)) for e in (one, other))
            self.assertEqual(one.convert(other.mode).tobytes(), other.tobytes())

    def compare_hparams(self, ours, theirs):
        one, other = (hparams(e, "session_start_info").session_start_info for e in (ours, theirs))
        self.assertEqual(one.hparams, other.hparams)
        self.assertEqual(hparams(ours, "session_end_info").session_end_info.status,
                         hparams(theirs, "session_end_info").session_end_info.status)
        one, other = (hparams(e, "experiment").experiment for e in (ours, theirs))
        for field, key in (("hparam_infos", lambda i: i.name), ("metric_infos",
                                                                lambda i: i.name.tag)):
            self.assertEqual(sorted(getattr(one, field), key=key),
                             sorted(getattr(other, field), key=key))

    def run_until_killed(self, first: int, steps: int) -> int:
        """Writes steps from `first` on, and kills the writer when `steps` of them were flushed.
        Returns the last one that was flushed.

        TensorBoard's reader takes milliseconds for a step. The small pipe keeps the writer from
        being far ahead when it is killed."""
        writer = subprocess.Popen([PROGRAM, "steps", self.folder, str(first)],
                                  stdout=subprocess.PIPE, text=True, pipesize=4096)
        lines = [writer.stdout.readline() for _ in range(steps)]
        writer.kill()
        output, _ = writer.communicate()
        lines += output.splitlines(keepends=True)
        return int([line for line in lines if line.endswith("\n")][-1])

    def steps(self) -> list[int]:
        """Returns the steps that a reader sees, each with its value."""
        events = read(self.folder)
        if "step" not in events.Tags()["scalars"]:
            return []
        self.assertTrue(all(e.value == e.step for e in events.Scalars("step")))
        return [e.step for e in events.Scalars("step")]

    def test_kills_and_restarts_lose_nothing_that_was_flushed_and_repeat_no_step(self):
        rng = random.Random(7)
        first = most = 0
        for life in range(8):
            flushed = self.run_until_killed(first, rng.randint(6, 60))
            steps = self.steps()
            with self.subTest(life=life, first=first, flushed=flushed):
                self.assertEqual(steps, list(range(len(steps))))
                self.assertGreaterEqual(len(steps), flushed + 1)
            most = max(most, len(steps))
            first = rng.randint(max(0, len(steps) - 20), len(steps))
        self.assertGreater(most, 5)

    def test_of_a_file_that_is_cut_anywhere_all_whole_events_are_read(self):
        self.run_until_killed(0, 60)
        [file] = self.folder.iterdir()
        content = file.read_bytes()
        rng = random.Random(8)
        before = len(self.steps())
        self.assertGreater(before, 0)
        for size in sorted((rng.randrange(len(content)) for _ in range(6)), reverse=True):
            file.write_bytes(content[:size])
            steps = self.steps()
            self.assertEqual(steps, list(range(len(steps))))
            self.assertLessEqual(len(steps), before)
            before = len(steps)

    def test_a_request_to_save_writes_at_once(self):
        writer = subprocess.Popen([PROGRAM, "save", self.folder], stdout=subprocess.PIPE, text=True)
        self.addCleanup(writer.communicate)
        self.addCleanup(writer.kill)  # called first
        writer.stdout.readline()
        self.assertEqual(read(self.folder).Tags()["scalars"], [])
        writer.send_signal(signal.SIGUSR1)
        deadline = time.monotonic() + 20
        steps = []
        while steps != [1, 2]:
            self.assertLess(time.monotonic(), deadline, f"only {steps}")
            events = read(self.folder)
            if events.Tags()["scalars"]:
                steps = [e.step for e in events.Scalars("loss")]


if __name__ == "__main__":
    unittest.main()
