// Writes event files, for tests/integration/worker_lib/tensorboard_test.py.
//
//   summary_test_program all DIRECTORY          events of all kinds
//   summary_test_program steps DIRECTORY FIRST  a step after the other, until it is killed; prints
//                                               each step when it is written
//   summary_test_program save DIRECTORY         events that only a request to save writes
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "ddprun/summary_writer.h"
#include "tests/support/eventually.h"
#include "worker_lib/context/save_request.h"

namespace ddprun {
namespace {

void write_all_kinds(SummaryWriter& writer) {
  for (int step = 0; step < 5; ++step) writer.add_scalar("loss", 1.0 / (step + 1), step);
  writer.add_scalar("other", -2.5, 3);

  std::vector<float> floats;
  std::vector<double> doubles{-1e-13, 0, 1e-12, 1e15};
  for (int i = 0; i < 1000; ++i) {
    floats.push_back(static_cast<float>(i * i % 997 - 400) / 8);
    doubles.push_back((i * i % 997 - 400) * 1e-7);
  }
  writer.add_histogram("floats", floats, 1);
  writer.add_histogram("doubles", doubles, 2);
  writer.add_histogram("one", std::vector<double>{1}, 2);

  writer.add_text("notes", "**bold** \xc3\xa4", 4);
  writer.add_text("notes", "second", 5);

  std::vector<std::uint8_t> bytes;
  for (int i = 0; i < 3 * 150 * 200; ++i) bytes.push_back(static_cast<std::uint8_t>(i * 7 % 256));
  const ImageShape shape{.height = 150, .width = 200};
  writer.add_image("chw", bytes, shape, 1);
  ImageShape hwc = shape;
  hwc.layout = ImageShape::Layout::kHWC;
  writer.add_image("hwc", bytes, hwc, 1);
  std::vector<float> fractions;
  for (int i = 0; i < 4 * 5 * 6; ++i) fractions.push_back(static_cast<float>(i) / 100 - 0.1F);
  writer.add_image("rgba", fractions, {.height = 5, .width = 6, .channels = 4}, 1);
  writer.add_image("grey", std::span(fractions).first(30), {.height = 5, .width = 6, .channels = 1},
                   1);

  writer.add_hparams({{"lr", 0.1}, {"layers", 3}, {"optimizer", "adam"}},
                     {{"accuracy", 0.75}, {"final loss", 0.25}}, 0);
}

[[noreturn]] void write_steps(SummaryWriter& writer, std::int64_t step) {
  for (;; ++step) {
    writer.add_scalar("step", static_cast<double>(step), step);
    // Large enough for a kill in the middle of a record.
    writer.add_text("filler", std::string(static_cast<std::size_t>(step * 7919 % 20'000), 'x'),
                    step);
    writer.flush();
    std::printf("%lld\n", static_cast<long long>(step));
    std::fflush(stdout);
  }
}

int run(std::string_view what, const std::string& directory, std::int64_t first_step) {
  SummaryWriter writer({.directory = directory,
                        .first_step = first_step,
                        .rank = 0,
                        .flush_every = std::chrono::hours(1)});
  if (what == "all") write_all_kinds(writer);
  if (what == "steps") write_steps(writer, first_step);
  if (what == "save") {
    listen_for_save_requests(SIGUSR1);
    writer.add_scalar("loss", 1, 1);
    std::puts("added");
    std::fflush(stdout);
    if (!testing_support::eventually(save_was_requested)) return 1;
    writer.add_scalar("loss", 2, 2);
    pause();  // until it is killed
  }
  return 0;
}

}  // namespace
}  // namespace ddprun

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  return ddprun::run(argv[1], argv[2], argc > 3 ? std::atoll(argv[3]) : 0);
}
