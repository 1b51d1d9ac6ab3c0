// Measures what a checkpoint costs: how long save() stops the training, and how long it takes
// until the file is on the disk, against floors measured in the same run.
//
// The world has one rank. Its state has a module, and SGD with momentum, with half of the bytes
// each. Each round measures these, one after the other:
//
//   save       CheckpointManager::save(), until it returns (stall) and until wait() returns (total)
//   memcpy     the floor of the stall: one memcpy of as many bytes into memory that was used before
//   write      the floor of the total: write(2) of as many bytes to a new file, and fsync
//
// The table shows medians over the rounds. The directory must be on the disk to measure. On a
// tmpfs the figures show only the time of the processor.
//
// Usage: checkpoint_cost [--directory DIR] [--rounds N] [--mib SIZES...]
#include <fcntl.h>
#include <torch/torch.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>
#include <ddprun/ddprun.hpp>
#include <filesystem>
#include <vector>

#include "base/unique_fd.h"
#include "base/write_all.h"
#include "benchmarks/give_up.h"
#include "benchmarks/statistics.h"

namespace ddprun::benchmarks {
namespace {

struct Plan {
  std::string directory = std::filesystem::temp_directory_path() / "ddprun-checkpoint-cost";
  int rounds = 9;
  std::vector<std::int64_t> mib{10, 100, 400};
};

// State: a training state of layers of 4 MiB, a usual size of large parameters.
class State {
 public:
  explicit State(std::int64_t bytes) {
    constexpr std::int64_t kWidth = 1024;
    for (std::int64_t layers = bytes / 2 / (kWidth * kWidth * 4), i = 0; i < layers; ++i)
      net_->push_back(torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
    optimizer_.emplace(net_->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    for (torch::Tensor& parameter : net_->parameters())
      parameter.mutable_grad() = torch::ones_like(parameter);
    optimizer_->step();
    state_ = {.model = net_.ptr().get(), .optimizer = &*optimizer_};
  }
  const TrainingState& get() const { return state_; }

 private:
  torch::nn::Sequential net_;
  std::optional<torch::optim::SGD> optimizer_;
  TrainingState state_;
};

double memcpy_ms(const std::vector<char>& from, std::vector<char>& to) {
  const TimePoint start = BootClock::now();
  std::memcpy(to.data(), from.data(), from.size());
  asm volatile("" : : "r"(to.data()) : "memory");  // keeps the compiler from removing the copy
  return ms_since(start);
}

double write_ms(const std::string& path, const std::vector<char>& bytes) {
  const TimePoint start = BootClock::now();
  {
    const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    if (!file.valid() || !write_all(file.get(), {bytes.data(), bytes.size()}) ||
        ::fsync(file.get()) != 0)
      give_up("write " + path);
  }
  const double took = ms_since(start);
  ::unlink(path.c_str());
  return took;
}

void measure(const Plan& plan, Context& context, std::int64_t mib) {
  const std::size_t bytes = static_cast<std::size_t>(mib) << 20;
  const State state(static_cast<std::int64_t>(bytes));
  const std::string directory = plan.directory + "/" + std::to_string(mib);
  CheckpointManager manager(context, {.directory = directory, .keep_last = 1});
  const std::vector<char> from(bytes, 'a');
  std::vector<char> to(bytes, 'b');
  std::vector<double> stall, total, copied, written;
  for (int round = -1; round < plan.rounds; ++round) {
    const TimePoint start = BootClock::now();
    manager.save(round + 1, state.get());
    const double stalled = ms_since(start);
    manager.wait();
    const double took = ms_since(start);
    const double copy = memcpy_ms(from, to);
    const double write = write_ms(directory + "/floor", from);
    if (round < 0) continue;  // the first round only makes the buffers
    stall.push_back(stalled);
    total.push_back(took);
    copied.push_back(copy);
    written.push_back(write);
  }
  const auto median = [](const std::vector<double>& values) { return percentile(values, 0.5); };
  std::printf("%6lld %9.1f %9.1f %8.2f %9.1f %9.1f %8.2f\n", static_cast<long long>(mib),
              median(stall), median(copied), median(stall) / median(copied), median(total),
              median(written), median(total) / median(written));
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  Plan plan;
  CLI::App app("Measures what a checkpoint costs.");
  app.add_option("--directory", plan.directory,
                 "where checkpoints are written; removed at the end");
  app.add_option("--rounds", plan.rounds)->check(CLI::PositiveNumber);
  app.add_option("--mib", plan.mib, "sizes of the state, multiples of 8")
      ->check(CLI::Range(8, 1 << 20));
  CLI11_PARSE(app, argc, argv);
  if (std::filesystem::exists(plan.directory)) give_up(plan.directory + " exists");
  torch::set_num_threads(1);
  {
    Context context = init();
    std::printf("%6s %9s %9s %8s %9s %9s %8s\n", "MiB", "stall ms", "memcpy", "multiple",
                "total ms", "write", "multiple");
    for (const std::int64_t mib : plan.mib) measure(plan, context, mib);
  }
  std::filesystem::remove_all(plan.directory);
  return 0;
}

}  // namespace
}  // namespace ddprun::benchmarks

int main(int argc, char** argv) { return ddprun::benchmarks::run(argc, argv); }
