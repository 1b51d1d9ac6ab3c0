// The program that spawn_test.cc runs to test what concerns the whole program:
//
//   spawn_test_program sum          ranks print the sum of their numbers
//   spawn_test_program streams      buffered output, static objects, and atexit handlers
//   spawn_test_program stay         two ranks that have a child each stay until they are ended
//   spawn_test_program save         two ranks that save something when they are told to end
//   spawn_test_program leave        as stay, and the program ends without its destructors
//   spawn_test_program computed     spawn() after LibTorch has started its threads
//   spawn_test_program no-children  SIGCHLD is ignored, as some daemons have it
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <ddprun/ddprun.hpp>
#include <iostream>
#include <string>

#include "tests/support/torch.h"

namespace {

void say(const std::string& line) {
  // One write for the whole line, because ranks share the stream.
  if (write(STDOUT_FILENO, line.data(), line.size()) < 0) std::abort();
}

void sum(int rank) {
  auto ctx = ddprun::init();
  torch::Tensor numbers = torch::full({3}, rank + 1);
  ctx.group().all_reduce(numbers);
  say("sum " + std::to_string(numbers[0].item<int>()) + "\n");
}

struct Static {
  ~Static() { say("static destroyed\n"); }
};

void streams() {
  static const Static one;
  std::atexit([] { say("atexit\n"); });
  std::printf("buffered by printf\n");
  std::ios::sync_with_stdio(false);
  std::cout << "buffered by cout\n";
  ddprun::spawn(
      [](int rank) {
        std::printf("rank %d by printf\n", rank);
        std::cout << "rank " + std::to_string(rank) +
                         " by cout, input ends: " + std::to_string(std::getchar() == EOF) + "\n";
      },
      2);
}

[[noreturn]] void stay_with_a_child(int rank) {
  if (fork() == 0) {
    setsid();
    std::signal(SIGTERM, SIG_IGN);
  } else {
    say("rank " + std::to_string(rank) + " is there\n");
  }
  for (;;) pause();
}

void save_when_told(int rank) {
  sigset_t term;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  sigprocmask(SIG_BLOCK, &term, nullptr);
  say("rank " + std::to_string(rank) + " is there\n");
  int signal = 0;
  sigwait(&term, &signal);
  say("rank " + std::to_string(rank) + " has saved\n");
}

void computed() {
  at::set_num_threads(2);
  at::parallel_for(0, 2, 1, [](std::int64_t, std::int64_t) {});
  try {
    ddprun::spawn(sum, 2);
  } catch (const ddprun::DistError& error) {
    say(std::string(error.what()) + "\n");
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::string play = argc == 2 ? argv[1] : "";
  if (play == "sum") {
    ddprun::spawn(sum, 2);
  } else if (play == "streams") {
    streams();
  } else if (play == "stay") {
    ddprun::spawn(stay_with_a_child, 2);
  } else if (play == "save") {
    ddprun::spawn(save_when_told, 2);
  } else if (play == "leave") {
    static const ddprun::SpawnContext ranks = ddprun::spawn_context(stay_with_a_child, 2);
    std::_Exit(7);
  } else if (play == "computed") {
    computed();
  } else if (play == "no-children") {
    std::signal(SIGCHLD, SIG_IGN);
    ddprun::spawn(sum, 2);
  } else {
    return 2;
  }
}
