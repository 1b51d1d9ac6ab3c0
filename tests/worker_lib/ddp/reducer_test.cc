// Tests the reducer when several threads run backward passes at the same time.
#include "worker_lib/ddp/reducer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <future>
#include <stdexcept>

#include "base/deadline.h"
#include "tests/support/eventually.h"
#include "tests/support/thread_world.h"
#include "tests/support/torch.h"

namespace ddprun {
namespace {

using testing_support::kPatience;
using testing_support::ThreadWorld;

constexpr int kPasses = 20'000;
constexpr auto kLongEnough = std::chrono::seconds(3);  // a slow machine runs fewer passes

// Runs a backward pass from an output that the reducer follows. The pass reaches no parameter.
// fails: an exception leaves the pass, so the reducer gives it up.
void run_pass(Reducer& reducer, bool fails) {
  const torch::Tensor input = torch::ones({1}, torch::requires_grad());
  const torch::Tensor output = input * 2;
  reducer.prepare_for_backward(std::vector<torch::Tensor>{output});
  if (fails)
    output.register_hook([](const torch::Tensor&) { throw std::runtime_error("given up"); });
  try {
    torch::autograd::grad({output}, {input}, {torch::ones({1})});
  } catch (const std::runtime_error&) {
  }
}

// The thread that drops a pass's last reference gives the pass up, and it locks the reducer for
// that. So a thread that has locked the reducer to look at the pass must never hold the last
// reference.
TEST(Reducer, APassIsGivenUpWhileAnotherThreadLooksAtIt) {
  ThreadWorld(1).run([](ProcessGroup& group) {
    const auto parameter = torch::ones({1}, torch::requires_grad());
    const auto reducer =
        Reducer::make({{.name = "p", .tensor = parameter}}, group, {.check_passes_late = false});
    std::atomic<bool> is_over = false;
    auto looking = std::async(std::launch::async, [&] {
      while (!is_over) run_pass(*reducer, /*fails=*/false);
    });
    auto failing = std::async(std::launch::async, [&] {
      const Deadline deadline(kLongEnough);
      for (int i = 0; i < kPasses && !deadline.passed(); ++i) run_pass(*reducer, /*fails=*/true);
      is_over = true;
    });
    for (const auto* thread : {&failing, &looking}) {
      if (thread->wait_for(kPatience) == std::future_status::ready) continue;
      std::fprintf(stderr, "a thread waits for the reducer's mutex that it holds itself\n");
      std::abort();  // the threads cannot be joined
    }
    run_pass(*reducer, /*fails=*/false);
  });
}

}  // namespace
}  // namespace ddprun
