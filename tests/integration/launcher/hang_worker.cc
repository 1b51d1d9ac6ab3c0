// The worker of hang_test: a rank that takes part in collectives only as far as its page
// shows.
//
//   hang_worker PLAY
//
// PLAY is a list of RANK:WHAT for generation 0. A rank that is not in it does its steps and
// succeeds. So does every rank of a later generation. WHAT:
//   load      reports step 7, and then sleeps outside the next collective
//   wait      the same, but waits in that collective
//   other     the same, but in another collective than the others
//   stop      the same as load, and stops itself by SIGSTOP
//   freeze    the same as wait, and stops itself by SIGSTOP
//   silent    reports no step and does nothing
//   late      reports nothing for longer than any timeout, but is in a long wait
//   crash     reports that its Context was destroyed in good order, and aborts
//   outlast   succeeds when the file "go" is there
// All ranks wait for each other before that, by files in their working directory. A rank that
// hangs prints "ready" first, and ends at SIGTERM.
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/worker_env.h"
#include "tests/support/eventually.h"
#include "worker_lib/flight/worker_reporter.h"

namespace {

using namespace ddprun;

std::string play_of(const std::string& plays, Rank rank) {
  std::size_t begin = 0;
  while (begin < plays.size()) {
    const std::size_t end = std::min(plays.find(',', begin), plays.size());
    const std::string one = plays.substr(begin, end - begin);
    const std::size_t colon = one.find(':');
    if (one.substr(0, colon) == to_text(rank)) return one.substr(colon + 1);
    begin = end + 1;
  }
  return "";
}

void say(const char* text) {
  [[maybe_unused]] const ssize_t written = write(STDOUT_FILENO, text, std::strlen(text));
}

FlightEntry all_reduce(std::uint64_t collective) {
  return {.collective = collective,
          .bytes = 4096,
          .call = FlightCall::kAllReduce,
          .dtype = FlightType::kFloat32,
          .op = FlightOp::kSum};
}

bool all_have_begun(const WorkerEnv& env) {
  std::ofstream("begun." + to_text(env.rank)).close();
  return testing_support::eventually([&] {
    for (int rank = 0; rank < env.world_size; ++rank) {
      if (!std::filesystem::exists("begun." + std::to_string(rank))) return false;
    }
    return true;
  });
}

}  // namespace

int main(int argc, char** argv) {
  const auto env = read_worker_env(environment_variable);
  if (argc != 2 || !env || !*env) return 2;
  const auto reporter = WorkerReporter::open(**env);
  if (!reporter->has_page()) {
    std::fprintf(stderr, "there is no page\n");
    return 3;
  }
  const bool first = (*env)->generation == Generation(0);
  const std::string play = first ? play_of(argv[1], (*env)->rank) : "";
  std::uint64_t collective = 0;
  while (collective < 8) {
    if (play == "silent") break;
    reporter->end_call(reporter->begin_call(all_reduce(++collective)),
                       /*failed=*/false);
  }
  // The ranks wait for each other, so that the first to report is not late because others
  // start later.
  if (first && !all_have_begun(**env)) return 4;
  if (play != "silent") reporter->report_step(7);
  if (play.empty()) return 0;
  if (play == "outlast") {
    return testing_support::eventually([] { return std::filesystem::exists("go"); }) ? 0 : 5;
  }
  if (play == "crash") {
    reporter->report_finished(true);
    std::abort();
  }
  std::fprintf(stderr, "%s\n", play.c_str());
  if (play == "wait" || play == "freeze") reporter->begin_call(all_reduce(++collective));
  if (play == "other") {
    reporter->begin_call({.collective = ++collective,
                          .bytes = std::uint64_t{4} << 20,
                          .call = FlightCall::kAllGather});
  }
  if (play == "late") reporter->begin_long_wait();
  say("ready\n");
  if (play == "stop" || play == "freeze") raise(SIGSTOP);
  while (true) pause();
}
