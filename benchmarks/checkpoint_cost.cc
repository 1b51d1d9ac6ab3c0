// Measures what a checkpoint costs: how long save() stops the training, and how long it takes
// until the file is on the disk, against floors measured in the same run.
//
// The state has a module, and SGD with momentum, with half of the bytes each. Each tensor has 4 MiB
// (--mib) or 64 bytes (--tensors). All ranks have the same (ddprun --nproc-per-node N
// checkpoint_cost). Each round measures these, one after the other:
//
//   save       CheckpointManager::save(), until it returns (stall) and until wait() returns (total)
//   memcpy     the floor of the stall: one memcpy of the rank's share of the bytes, of all ranks at
//              the same time, into memory that was used before
//   write      the floor of the total: write(2) of all bytes by one rank to a new file, and fsync
//
// Of several ranks the slowest one counts. Columns named cpu are the processors' time of the thread
// that saves (of a stall) or of the whole process. It depends less on what else the machine does.
//
// The table shows medians over the rounds. The directory must be on the disk to measure. On a
// tmpfs the figures show only the time of the processor.
//
// With --keep the checkpoints stay, for a later run with --restore. That one may have several ranks
// (ddprun --nproc-per-node N checkpoint_cost --restore). It measures these, in new processes and
// with the file dropped from the page cache:
//
//   restore    CheckpointManager::restore() of the newest checkpoint, on the slowest rank
//   floor      one rank reads the file, then each rank copies as many bytes with memcpy
//   beyond     the most memory of a rank during restore() beyond the tensors that it fills
//
// Usage: checkpoint_cost [--directory DIR] [--rounds N] [--mib SIZES...] [--tensors COUNTS...]
//                        [--keep | --restore]
#include <fcntl.h>
#include <sys/resource.h>
#include <torch/torch.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <cstring>
#include <ddprun/ddprun.hpp>
#include <filesystem>
#include <fstream>
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
  std::vector<std::int64_t> mib;
  std::vector<std::int64_t> tensors;
  bool keep = false;
  bool restore = false;
};

// Size: the size of a training state.
struct Size {
  std::string name;
  std::int64_t tensors = 0;   // a half are parameters, a half are momentums
  std::int64_t elements = 0;  // float32, of each tensor

  std::size_t bytes() const { return static_cast<std::size_t>(tensors * elements) * 4; }
};

std::vector<Size> sizes_of(const Plan& plan) {
  constexpr std::int64_t kLarge = 1 << 20;  // 4 MiB, a usual size of large parameters
  constexpr std::int64_t kSmall = 16;
  std::vector<Size> sizes;
  for (const std::int64_t mib : plan.mib)
    sizes.push_back({std::to_string(mib) + "-MiB", mib / 8 * 2, kLarge});
  for (const std::int64_t count : plan.tensors)
    sizes.push_back({std::to_string(count) + "-tensors", count / 2 * 2, kSmall});
  return sizes;
}

enum class HasTrained { kNo, kYes };

// State: a training state of this size.
class State {
 public:
  explicit State(const Size& size, HasTrained has_trained = HasTrained::kYes) {
    for (std::int64_t i = 0; i < size.tensors / 2; ++i)
      net_.register_parameter("weight" + std::to_string(i), torch::rand({size.elements}));
    optimizer_.emplace(net_.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    state_ = {.model = &net_, .optimizer = &*optimizer_, .has_position = false};
    if (has_trained == HasTrained::kNo) return;
    for (torch::Tensor& parameter : net_.parameters())
      parameter.mutable_grad() = torch::ones_like(parameter);
    optimizer_->step();
    for (torch::Tensor& parameter : net_.parameters()) parameter.mutable_grad().reset();
  }
  const TrainingState& get() const { return state_; }
  TrainingState& get() { return state_; }

 private:
  torch::nn::Module net_;
  std::optional<torch::optim::SGD> optimizer_;
  TrainingState state_;
};

// Returns the processors' time so far of RUSAGE_SELF or RUSAGE_THREAD.
double cpu_ms(__rusage_who who) {
  struct rusage usage {};
  if (::getrusage(who, &usage) != 0) give_up("measure the processors' time");
  const auto ms = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_usec) / 1e3;
  };
  return ms(usage.ru_utime) + ms(usage.ru_stime);
}

double memcpy_ms(const std::vector<char>& from, std::vector<char>& to) {
  const TimePoint start = BootClock::now();
  std::memcpy(to.data(), from.data(), from.size());
  asm volatile("" : : "r"(to.data()) : "memory");  // keeps the compiler from removing the copy
  return ms_since(start);
}

double write_ms(const std::string& path, const std::vector<char>& bytes, int times) {
  const TimePoint start = BootClock::now();
  {
    const UniqueFd file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666));
    bool is_written = file.valid();
    for (int i = 0; i < times && is_written; ++i)
      is_written = write_all(file.get(), {bytes.data(), bytes.size()});
    if (!is_written || ::fsync(file.get()) != 0) give_up("write " + path);
  }
  const double took = ms_since(start);
  ::unlink(path.c_str());
  return took;
}

// Returns a value of /proc/self/status in MiB.
double memory_mib(const std::string& key) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with(key + ":")) return std::stod(line.substr(key.size() + 1)) / 1024;
  give_up("find " + key + " in /proc/self/status");
}

void drop_from_cache(const std::string& path) {
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid() || ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_DONTNEED) != 0)
    give_up("drop " + path + " from the page cache");
}

double read_ms(const std::string& path) {
  const TimePoint start = BootClock::now();
  const UniqueFd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  std::vector<char> piece(4 << 20);
  ssize_t count = 1;
  while (count > 0) count = ::read(file.get(), piece.data(), piece.size());
  if (!file.valid() || count < 0) give_up("read " + path);
  return ms_since(start);
}

// The copies of one rank, piece by piece, to memory that was used before.
double copies_ms(std::size_t bytes) {
  const std::vector<char> from(4 << 20, 'a');
  std::vector<char> to(64 << 20, 'b');
  const TimePoint start = BootClock::now();
  for (std::size_t at = 0; at < bytes; at += from.size()) {
    std::memcpy(to.data() + at % to.size(), from.data(), from.size());
    asm volatile("" : : "r"(to.data()) : "memory");
  }
  return ms_since(start);
}

void measure_restore(const Plan& plan, Context& context, const Size& size) {
  ProcessGroup& group = context.group();
  const std::string directory = plan.directory + "/" + size.name;
  std::string file;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    if (entry.path().extension() == ".pt") file = std::max(file, entry.path().string());
  drop_from_cache(file);
  group.barrier();
  const double read = context.rank() == 0 ? read_ms(file) : 0;
  group.barrier();
  const double copied = copies_ms(size.bytes());
  group.barrier();
  drop_from_cache(file);
  State state(size, HasTrained::kNo);
  CheckpointManager manager(context, {.directory = directory, .read_only = true});
  group.barrier();
  const double before = memory_mib("VmRSS");
  std::ofstream("/proc/self/clear_refs") << 5;  // resets VmHWM
  const double cpu_before = cpu_ms(RUSAGE_SELF);
  const TimePoint start = BootClock::now();
  if (!manager.restore(state.get())) give_up("restore from " + directory);
  const double took = ms_since(start);
  const double cpu = cpu_ms(RUSAGE_SELF) - cpu_before;
  // The momentum is new.
  const double beyond =
      memory_mib("VmHWM") - before - static_cast<double>(size.bytes()) / 2 / (1 << 20);
  torch::Tensor worst = torch::tensor({took, beyond, read + copied, cpu});
  group.all_reduce(worst, {.op = ReduceOp::kMax});
  const auto result = [&](int i) { return worst[i].item<double>(); };
  if (context.rank() != 0) return;
  std::printf("%14s %6d %10.1f %9.1f %8.2f %9.1f %12.1f\n", size.name.c_str(), group.size(),
              result(0), result(2), result(0) / result(2), result(3), result(1));
  std::fflush(stdout);
}

void measure(const Plan& plan, Context& context, const Size& size) {
  const State state(size);
  const std::string directory = plan.directory + "/" + size.name;
  CheckpointManager manager(context, {.directory = directory, .keep_last = plan.keep ? 2 : 1});
  ProcessGroup& group = context.group();
  const std::vector<char> from(size.bytes() / static_cast<std::size_t>(group.size()), 'a');
  std::vector<char> to(from.size(), 'b');
  std::vector<double> stall, total, copied, written, stall_cpu, total_cpu;
  for (int round = -1; round < plan.rounds; ++round) {
    group.barrier();
    const double thread_before = cpu_ms(RUSAGE_THREAD), all_before = cpu_ms(RUSAGE_SELF);
    const TimePoint start = BootClock::now();
    manager.save(round + 1, state.get());
    const double stalled = ms_since(start);
    const double thread_cpu = cpu_ms(RUSAGE_THREAD) - thread_before;
    manager.wait();
    const double took = ms_since(start);
    const double all_cpu = cpu_ms(RUSAGE_SELF) - all_before;
    group.barrier();
    const double copy = memcpy_ms(from, to);
    group.barrier();
    const double write = group.rank() == 0 ? write_ms(directory + "/floor", from, group.size()) : 0;
    const torch::Tensor worst = torch::tensor({stalled, took, copy, write, thread_cpu, all_cpu});
    group.all_reduce(worst, {.op = ReduceOp::kMax});
    if (round < 0) continue;  // the first round only makes the buffers
    stall.push_back(worst[0].item<double>());
    total.push_back(worst[1].item<double>());
    copied.push_back(worst[2].item<double>());
    written.push_back(worst[3].item<double>());
    stall_cpu.push_back(worst[4].item<double>());
    total_cpu.push_back(worst[5].item<double>());
  }
  if (group.rank() != 0) return;
  const auto median = [](const std::vector<double>& values) { return percentile(values, 0.5); };
  std::printf("%14s %6d %9.1f %9.1f %8.2f %9.1f %9.1f %9.1f %8.2f %9.1f\n", size.name.c_str(),
              group.size(), median(stall), median(copied), median(stall) / median(copied),
              median(stall_cpu), median(total), median(written), median(total) / median(written),
              median(total_cpu));
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  Plan plan;
  CLI::App app("Measures what a checkpoint costs.");
  app.add_option("--directory", plan.directory,
                 "where checkpoints are written; removed at the end");
  app.add_option("--rounds", plan.rounds)->check(CLI::PositiveNumber);
  app.add_option("--mib", plan.mib, "sizes of states of large tensors, multiples of 8")
      ->check(CLI::Range(8, 1 << 20));
  app.add_option("--tensors", plan.tensors, "numbers of tensors of states of small tensors")
      ->check(CLI::Range(2, 10'000'000));
  app.add_flag("--keep", plan.keep, "leave the checkpoints there");
  app.add_flag("--restore", plan.restore, "measure restore() of the checkpoints that are there");
  CLI11_PARSE(app, argc, argv);
  if (plan.mib.empty() && plan.tensors.empty()) plan.mib = {10, 100, 400};
  torch::set_num_threads(1);
  if (plan.restore) {
    Context context = init();
    if (context.rank() == 0)
      std::printf("%14s %6s %10s %9s %8s %9s %12s\n", "state", "ranks", "restore ms", "floor",
                  "multiple", "cpu ms", "beyond MiB");
    for (const Size& size : sizes_of(plan)) measure_restore(plan, context, size);
    return 0;
  }
  bool is_first = true;
  {
    Context context = init();
    is_first = context.rank() == 0;
    if (is_first && std::filesystem::exists(plan.directory)) give_up(plan.directory + " exists");
    context.group().barrier();
    if (is_first)
      std::printf("%14s %6s %9s %9s %8s %9s %9s %9s %8s %9s\n", "state", "ranks", "stall ms",
                  "memcpy", "multiple", "cpu ms", "total ms", "write", "multiple", "cpu ms");
    for (const Size& size : sizes_of(plan)) measure(plan, context, size);
  }
  if (!plan.keep && is_first) std::filesystem::remove_all(plan.directory);
  return 0;
}

}  // namespace
}  // namespace ddprun::benchmarks

int main(int argc, char** argv) { return ddprun::benchmarks::run(argc, argv); }
