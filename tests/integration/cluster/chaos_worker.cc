// The worker of chaos_test: checks its rank and generation, reports its start, and waits for
// the end.
//
//   chaos_worker DIRECTORY
//
// It writes one line to DIRECTORY/reports, a FIFO. A failure is "violation" and a description.
// A success is "started GENERATION RANK WORLD_SIZE RESTARTS PID". It ends with 0 when
// DIRECTORY/go becomes readable. This is a FIFO that no process reads. It also leaves these
// files:
//   rank-R   locked as long as a worker of rank R lives; has the newest generation of that rank
//   newest   the newest generation of any worker
#include <fcntl.h>
#include <poll.h>
#include <sys/file.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>

#include "base/parse_number.h"
#include "base/unique_fd.h"
#include "base/worker_env.h"

namespace {

using namespace ddprun;

std::string directory;

void report(const std::string& line) {
  const UniqueFd reports(::open((directory + "/reports").c_str(), O_WRONLY | O_CLOEXEC));
  const std::string text = line + "\n";  // shorter than PIPE_BUF: never mixed with another line
  if (::write(reports.get(), text.data(), text.size()) < 0) std::perror("chaos_worker: reports");
}

[[noreturn]] void violation(const std::string& what) {
  report("violation " + what);
  std::exit(1);
}

UniqueFd lock(const std::string& name, int how) {
  UniqueFd file(::open((directory + "/" + name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (::flock(file.get(), how) != 0) file.reset();
  return file;
}

// Returns the number in a file that this process has locked. A new file has none. The number
// has a fixed width, so one call overwrites it. A process that is killed leaves the old number
// or the new one.
std::optional<std::int64_t> number_in(const UniqueFd& file) {
  std::array<char, 20> text;
  if (::pread(file.get(), text.data(), text.size(), 0) != ssize_t{text.size()}) return std::nullopt;
  const std::string_view digits(text.data(), text.size());
  return parse_number<std::int64_t>(digits.substr(digits.find_last_of(' ') + 1));
}

void put_number(const UniqueFd& file, std::int64_t number) {
  std::array<char, 21> text;
  std::snprintf(text.data(), text.size(), "%20lld", static_cast<long long>(number));
  if (::pwrite(file.get(), text.data(), 20, 0) != 20) violation("cannot write a number");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  directory = argv[1];
  const auto environment = read_worker_env(environment_variable);
  if (!environment) violation(environment.error().message());
  if (!*environment) violation("there is no RANK");
  const WorkerEnv& env = **environment;
  const std::string me =
      "rank " + to_text(env.rank) + " of generation " + to_text(env.generation) + ": ";
  if (env.node_rank.value != env.rank.value || env.node_count != env.world_size) {
    violation(me + "one worker per node, but this is node " + to_text(env.node_rank) + " of " +
              std::to_string(env.node_count));
  }

  // The lock is held until the end of this process.
  const UniqueFd place = lock("rank-" + to_text(env.rank), LOCK_EX | LOCK_NB);
  if (!place.valid()) violation(me + "another worker of this rank lives");
  if (const auto last = number_in(place); last && *last >= env.generation.value) {
    violation(me + "this rank was in generation " + std::to_string(*last) + " before");
  }
  put_number(place, env.generation.value);
  {
    const UniqueFd newest = lock("newest", LOCK_EX);
    const auto last = number_in(newest);
    if (last && *last > env.generation.value) {
      violation(me + "generation " + std::to_string(*last) + " has begun already");
    }
    put_number(newest, env.generation.value);
  }

  const UniqueFd go(::open((directory + "/go").c_str(), O_RDONLY | O_CLOEXEC));
  report("started " + to_text(env.generation) + " " + to_text(env.rank) + " " +
         std::to_string(env.world_size) + " " + std::to_string(env.restart_count) + " " +
         std::to_string(::getpid()));
  pollfd end{go.get(), POLLIN, 0};
  while (::poll(&end, 1, -1) < 0) {
  }
  return (end.revents & POLLIN) != 0 ? 0 : 1;
}
