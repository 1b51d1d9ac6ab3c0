// The worker of chaos_test: makes sure of its place, says that it has started, and waits for the end.
//
//   chaos_worker DIRECTORY
//
// What goes wrong is one line of DIRECTORY/reports, a FIFO, "violation" and what it is; what goes well
// is "started GENERATION RANK WORLD_SIZE RESTARTS PID". It ends with 0 when DIRECTORY/go, a FIFO that
// nobody reads, has something to read. Beside them it leaves
//   rank-R   locked as long as a worker of rank R lives, with the newest generation that rank was in
//   newest   the newest generation that any worker was in
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
  const std::string text = line + "\n";  // shorter than PIPE_BUF: never mixed with another's
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

// The number in a file that we have locked; a new file has none. Of one width, so that it is
// overwritten by one call: whoever is killed leaves the old one or the new one.
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

  // Held to the end of this process.
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
