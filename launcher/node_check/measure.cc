#include "launcher/node_check/measure.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <memory>
#include <new>
#include <string_view>
#include <vector>

#include "base/background_thread.h"
#include "base/concat.h"
#include "base/fnv1a.h"
#include "base/small_file.h"
#include "base/unique_fd.h"
#include "base/write_all.h"
#include "launcher/process/own_cgroup.h"
#include "rendezvous/net/blocking_socket.h"
#include "rendezvous/net/listen.h"

namespace ddprun {
namespace {

constexpr std::size_t kCopied = std::size_t{32} << 20;
constexpr std::size_t kWritten = std::size_t{1} << 20;
constexpr std::size_t kLoopback = std::size_t{1} << 20;
// Workers that have just ended may have used up the quota of a period (0.1 s). So only a quota that
// stops each try is a fault.
constexpr int kCoreTries = 3;
constexpr Duration kPatience = std::chrono::seconds(5);  // for disk and loopback

double in_seconds_of(Duration time) { return std::chrono::duration<double>(time).count(); }

// Returns the CPU time of this thread. It does not grow while other work has the core.
Duration cpu_time() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return std::chrono::seconds(now.tv_sec) + Duration(now.tv_nsec);
}

// Returns the bytes each second, for a time that may be 0.
double speed(std::size_t bytes, Duration time) {
  return static_cast<double>(bytes) / std::max(in_seconds_of(time), 1e-9);
}

// Runs the body. Returns the part of its time in which a CPU quota stopped it. Time in which other
// work had the core does not count: on a busy node it would hide the quota.
template <class Body>
double share_throttled(Body body) {
  const TimePoint start = BootClock::now();
  const Duration cpu_before = cpu_time();
  const Duration throttled_before = time_throttled();
  body();
  const Duration throttled = time_throttled() - throttled_before;
  const Duration cpu = cpu_time() - cpu_before;
  // Other threads of these control groups may be stopped while this one runs.
  const Duration stopped = std::min(throttled, BootClock::now() - start - cpu);
  return in_seconds_of(stopped) / std::max(in_seconds_of(stopped + cpu), 1e-9);
}

void measure_core(const NodeLimits& limits, NodeMeasurements& measured) {
  measured.core = Duration::max();
  for (int i = 0; i < kTries && (i < kLeastTries || measured.core > limits.core); ++i) {
    const Duration start = cpu_time();
    measured.digest = arithmetic_digest();
    measured.core = std::min(measured.core, cpu_time() - start);
    if (measured.digest != kKnownDigest) return;
  }
}

void measure_memory(const NodeLimits& limits, NodeMeasurements& measured) {
  const std::vector<char> from(kCopied, 'a');
  const std::unique_ptr<char[]> to(new char[kCopied]);
  for (int i = 0; i < kTries && (i < kLeastTries || measured.memory < limits.memory); ++i) {
    const Duration start = cpu_time();
    std::memcpy(to.get(), from.data(), kCopied);
    asm volatile("" : : "r"(to.get()) : "memory");  // keeps the compiler from removing the copy
    measured.memory = std::max(measured.memory, speed(kCopied, cpu_time() - start));
  }
}

// Returns why the directory cannot be written; empty: it can.
Result<std::string> try_disk(const std::string& directory) {
  const std::string path = concat(directory, "/.node-check-", ::getpid());
  const auto failed = [&](const char* what) {
    return concat(what, " ", path, ": ", errno_text(errno));
  };
  const UniqueFd file(::open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
  if (!file.valid()) return failed("open");
  ::unlink(path.c_str());  // nothing is left, whatever happens
  const std::string block(kWritten, 'x');
  if (!write_all(file.get(), block)) return failed("write");
  std::string back(kWritten, ' ');
  const ssize_t got = ::pread(file.get(), back.data(), back.size(), 0);
  if (got < 0) return failed("read");
  if (static_cast<std::size_t>(got) != kWritten || back != block) {
    return concat("read ", path, ": not the bytes that were written");
  }
  return std::string();
}

void measure_disk(const std::string& directory, NodeMeasurements& measured) {
  if (directory.empty()) return;
  const std::optional<Result<std::string>> done =
      result_within<std::string>(kPatience, "ddprun-disk", [directory]() -> Result<std::string> {
        try {
          return try_disk(directory);
        } catch (const std::bad_alloc&) {
          return errno_text(ENOMEM);
        }
      });
  if (!done) {
    measured.disk_error = concat("no answer of ", directory, " within ", kPatience);
  } else {
    measured.disk_error = *done ? **done : done->error().message();
  }
}

// Sends bytes over loopback to this thread. Returns the bytes each second.
Result<double> try_loopback() {
  const Deadline deadline(kPatience);
  Result<Listener> listener = listen_tcp({"127.0.0.1", 0});
  if (!listener) return listener.error();
  Result<BlockingSocket> sender =
      BlockingSocket::connect(*numeric_address(listener->address), deadline);
  if (!sender) return sender.error();
  // The connection is in the backlog: connect() has succeeded.
  UniqueFd accepted(::accept4(listener->socket.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!accepted.valid()) return system_error("accept", errno);
  Result<BlockingSocket> receiver = BlockingSocket::of(std::move(accepted));
  if (!receiver) return receiver.error();
  const std::string bytes(kLoopback, 'x');
  std::string space(std::size_t{64} << 10, ' ');
  const TimePoint start = BootClock::now();
  for (std::size_t sent = 0, got = 0; got < kLoopback;) {
    const Result<std::size_t> more = sender->send_some(std::string_view(bytes).substr(sent));
    if (!more) return more.error();
    sent += *more;
    const Result<std::size_t> came = receiver->receive(space, deadline);
    if (!came) return came.error();
    got += *came;
  }
  return speed(kLoopback, BootClock::now() - start);
}

void measure_loopback(const NodeLimits& limits, NodeMeasurements& measured) {
  for (int i = 0; i < kTries && (i < kLeastTries || measured.loopback < limits.loopback); ++i) {
    const Result<double> tried = try_loopback();
    if (!tried) {
      measured.loopback_error = tried.error().message();
      return;
    }
    measured.loopback = std::max(measured.loopback, *tried);
  }
}

// Returns the time in cpu.stat: nanoseconds in version 1, microseconds in version 2.
Duration throttled_in(const std::string& path) {
  std::ifstream file(path);
  std::string name;
  std::int64_t value = 0;
  while (file >> name >> value) {
    if (name == "throttled_time") return Duration(value);
    if (name == "throttled_usec") return std::chrono::microseconds(value);
  }
  return {};
}

}  // namespace

std::uint64_t arithmetic_digest() {
  constexpr std::size_t kSide = 64;
  constexpr int kRounds = 8;
  using Matrix = std::array<std::array<double, kSide>, kSide>;
  constexpr std::uint64_t kBelow = 1024;  // a sum of kSide products is exact
  std::uint64_t state = 1;
  const auto next = [&state] {
    state = state * 6364136223846793005U + 1442695040888963407U;
    return static_cast<double>((state >> 33) % kBelow);
  };
  const auto fill = [&next](Matrix& matrix) {
    for (auto& row : matrix) std::ranges::generate(row, next);
  };
  Matrix left, right, product;
  std::uint64_t digest = kEmptyFnv1a;
  fill(left);
  for (int round = 0; round < kRounds; ++round) {
    fill(right);
    for (std::size_t i = 0; i < kSide; ++i) {
      product[i].fill(0);
      for (std::size_t k = 0; k < kSide; ++k) {
        for (std::size_t j = 0; j < kSide; ++j) product[i][j] += left[i][k] * right[k][j];
      }
    }
    for (std::size_t i = 0; i < kSide; ++i) {
      for (std::size_t j = 0; j < kSide; ++j) {
        const auto whole = static_cast<std::uint64_t>(product[i][j]);
        digest = (digest ^ whole) * 0x100000001b3;
        left[i][j] = static_cast<double>(whole % kBelow);
      }
    }
  }
  return digest;
}

Duration time_throttled() {
  const std::string groups = text_of("/proc/self/cgroup");
  const std::pair<const char*, const char*> hierarchies[] = {{"", "/sys/fs/cgroup"},
                                                             {"cpu", "/sys/fs/cgroup/cpu"}};
  Duration sum{};
  for (const auto& [controller, mount] : hierarchies) {
    std::optional<std::string> path = cgroup_in(groups, controller);
    // The quota of a group counts for all groups in it. What lies outside of a namespace is not
    // visible.
    for (; path; path->resize(path->rfind('/'))) {
      sum += throttled_in(concat(mount, *path == "/" ? "" : *path, "/cpu.stat"));
      if (path->size() < 2) break;
    }
  }
  return sum;
}

NodeMeasurements measure_node(const std::string& directory, const NodeLimits& limits,
                              NodeStep& step) {
  NodeMeasurements measured;
  measured.throttled = 1;
  // A wrong digest is a fault at once: a later try must not hide it.
  const auto is_wanted = [&] {
    return measured.throttled > limits.throttled && measured.digest == kKnownDigest;
  };
  for (int i = 0; i < kCoreTries && is_wanted(); ++i) {
    const double throttled = share_throttled([&] {
      step = "core";
      measure_core(limits, measured);
      step = "memory";
      measure_memory(limits, measured);
    });
    measured.throttled = std::min(measured.throttled, throttled);
  }
  step = "disk";
  measure_disk(directory, measured);
  step = "loopback";
  measure_loopback(limits, measured);
  return measured;
}

}  // namespace ddprun
