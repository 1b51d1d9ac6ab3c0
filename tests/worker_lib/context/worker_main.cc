// worker_test_rank PLAY [INIT_METHOD [TIMEOUT_S]]: the workers of worker_processes_test.cc and
// start_by_hand_test.cc. PLAY names what the worker does.
#include <ddprun/context.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>

#include "tests/support/eventually.h"
#include "tests/support/torch.h"
#include "tests/support/worker_failure.h"

namespace {

using ddprun::Context;
using ddprun::DistError;
using ddprun::ProcessGroup;
using ddprun::testing_support::kFailedAsExpected;

void say(const std::string& text) {
  const std::string line = text + "\n";
  [[maybe_unused]] const ssize_t written = write(STDOUT_FILENO, line.data(), line.size());
}

int report(const DistError& failure) {
  say(ddprun::testing_support::failure_line(failure));
  return kFailedAsExpected;
}

// Repeats one step of training, as far as its collectives, and prints "." after each, until
// one fails.
int step_until_failure(Context& context, std::int64_t elements, bool async) {
  ProcessGroup& group = context.group();
  const torch::Tensor gradients = torch::empty({elements});
  const torch::Tensor loss = torch::empty({1});
  try {
    while (true) {
      gradients.fill_(1);
      loss.fill_(1);
      const ddprun::Work first = group.all_reduce(gradients, {.async = async});
      const ddprun::Work second = group.all_reduce(loss, {.async = async});
      first.wait();
      second.wait();
      if (!torch::all(gradients == group.size()).item<bool>()) {
        say("wrong result");
        return 1;
      }
      say(".");
    }
  } catch (const DistError& failure) {
    return report(failure);
  }
}

// Does the same with barriers that name the missing ranks.
int monitored_barriers(Context& context) {
  try {
    while (true) {
      context.group().monitored_barrier();
      say(".");
    }
  } catch (const DistError& failure) {
    return report(failure);
  }
}

int sum(Context& context) {
  const torch::Tensor ranks = torch::full({4}, static_cast<double>(context.rank()));
  context.group().all_reduce(ranks);
  say("sum " + std::to_string(ranks[0].item<int>()) + " on node " +
      std::to_string(context.node_rank()));
  return 0;
}

// Starts works that are never awaited, and destroys their group while they run.
int leave_in_flight(Context& context) {
  const torch::Tensor x = torch::ones({1 << 20});
  for (int i = 0; i < 20; ++i) context.group().all_reduce(x, {.async = true});
  return 0;  // the context is destroyed on return
}

// Rank 0 leaves the others waiting in a collective, and ends with success.
int leave_early(Context& context) {
  context.group().barrier();
  if (context.rank() == 0) return 0;
  try {
    context.group().barrier();
  } catch (const DistError& failure) {
    return report(failure);
  }
  say("the barrier ended without rank 0");
  return 1;
}

// Rank 1 calls `instead` and misses the second sum. The others wait half a second for it.
int stay_away(Context& context,
              const std::function<void(ProcessGroup&, const torch::Tensor&)>& instead) {
  const torch::Tensor x = torch::ones({4});
  context.group().all_reduce(x);
  context.report_progress(1);
  try {
    if (context.rank() == 1) instead(context.group(), x);
    context.group().all_reduce(x, {.timeout = std::chrono::milliseconds(500)});
  } catch (const DistError& failure) {
    return report(failure);
  }
  say("rank 1 came");
  return 1;
}

// Rank 1 calls another collective than the others.
int disagree(Context& context) {
  const torch::Tensor tensor = torch::zeros({4});
  try {
    context.rank() == 1 ? context.group().broadcast(tensor) : context.group().all_reduce(tensor);
  } catch (const DistError& failure) {
    return report(failure);
  }
  say("nobody has noticed");
  return 1;
}

// Rank 1 dies while the others form a group with it.
int form_with_the_dead(Context& context) {
  context.group().barrier();
  if (context.rank() == 1) {
    say("gone");
    raise(SIGKILL);
  }
  try {
    context.new_group({0, 1, 2});
  } catch (const DistError& failure) {
    return report(failure);
  }
  say("there is a group without rank 1");
  return 1;
}

// Rank 1 of the first generation dies between two collectives. The next generation computes
// its sum.
int die_once(Context& context) {
  say("ready in generation " + std::to_string(context.generation()));
  context.group().barrier();
  if (context.generation() == 0 && context.rank() == 1) raise(SIGKILL);
  return sum(context);
}

// Rank 1 of the first generation aborts while its Context lives.
int abort_within(Context& context) {
  context.group().barrier();
  if (context.generation() == 0 && context.rank() == 1) std::abort();
  return 0;
}

// Rank 1 of the first generation aborts after this, when its Context has been destroyed.
bool aborts_afterwards = false;

int abort_afterwards(Context& context) {
  context.group().barrier();
  aborts_afterwards = context.generation() == 0 && context.rank() == 1;
  return 0;
}

// Rank 1 of the first generation misses the fourth sum. `async`: the others wait for a Work.
int hang(Context& context, bool async) {
  for (int step = 1; step <= 5; ++step) {
    const bool stays_away = context.generation() == 0 && context.rank() == 1 && step == 4;
    while (stays_away) pause();
    const torch::Tensor x = torch::ones({4});
    context.group().all_reduce(x, {.async = async}).wait();
    context.report_progress(step);
  }
  return 0;
}

// Rank 0 works alone for three seconds: three times a --hang-timeout of one second.
int work_alone(Context& context) {
  context.report_progress(1);
  if (context.rank() == 0) {
    torch::Tensor x = torch::eye(32);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(3);
    while (std::chrono::steady_clock::now() < end) {
      x = x.mm(x);
      context.report_activity();
    }
  }
  {
    const ddprun::LongWait for_rank_0(context.group());
    context.group().barrier();
  }
  context.report_progress(2);
  return 0;
}

// Does steps of 40 ms for as long as the environment says. slow_rank: computes for 20 % longer.
int equal_steps(Context& context, int slow_rank) {
  using std::chrono::milliseconds;
  using std::chrono::steady_clock;
  const torch::Tensor gradients = torch::ones({1000});
  const char* const seconds = std::getenv("STEPS_SECONDS");
  const int steps = 25 * (seconds ? std::atoi(seconds) : 12);
  for (int step = 1; step <= steps; ++step) {
    ddprun::testing_support::let_pass(milliseconds(40));
    const auto end = steady_clock::now() + milliseconds(context.rank() == slow_rank ? 8 : 0);
    while (steady_clock::now() < end) {
    }
    // Some of the waits are in the call, and some in wait().
    context.group().all_reduce(gradients, {.async = step % 2 == 0}).wait();
    context.report_progress(step);
  }
  return 0;
}

int fail_uncaught(Context& context) {
  context.group().broadcast(torch::zeros({2}), {.root = 9});
  return 0;
}

const std::map<std::string, std::function<int(Context&)>> kPlays{
    {"sum", sum},
    {"small", [](Context& context) { return step_until_failure(context, 1, false); }},
    {"large", [](Context& context) { return step_until_failure(context, 1 << 20, false); }},
    {"async", [](Context& context) { return step_until_failure(context, 1 << 18, true); }},
    {"monitored_barriers", monitored_barriers},
    {"leave_in_flight", leave_in_flight},
    {"leave_early", leave_early},
    {"stay_away",
     [](Context& context) {
       return stay_away(context, [](ProcessGroup&, const torch::Tensor&) { pause(); });
     }},
    {"stay_in_recv",
     [](Context& context) {
       return stay_away(context,
                        [](ProcessGroup& group, const torch::Tensor& x) { group.recv(x, 0); });
     }},
    {"stay_stopped",
     [](Context& context) {
       return stay_away(context, [](ProcessGroup&, const torch::Tensor&) { raise(SIGSTOP); });
     }},
    {"disagree", disagree},
    {"form_with_the_dead", form_with_the_dead},
    {"die_once", die_once},
    {"abort_within", abort_within},
    {"abort_afterwards", abort_afterwards},
    {"hang", [](Context& context) { return hang(context, false); }},
    {"hang_async", [](Context& context) { return hang(context, true); }},
    {"work_alone", work_alone},
    {"equal_steps", [](Context& context) { return equal_steps(context, -1); }},
    {"slow_steps", [](Context& context) { return equal_steps(context, 2); }},
    {"fail_uncaught", fail_uncaught},
};

}  // namespace

int main(int argc, char** argv) {
  const auto play = argc >= 2 && argc <= 4 ? kPlays.find(argv[1]) : kPlays.end();
  if (play == kPlays.end()) {
    std::fprintf(stderr, "usage: worker_test_rank PLAY [INIT_METHOD [TIMEOUT_S]]\n");
    return 2;
  }
  ddprun::InitOptions options;
  options.timeout = std::chrono::seconds(argc == 4 ? std::atoi(argv[3]) : 30);
  if (argc >= 3) options.init_method = argv[2];
  const auto perform = [&] {
    Context context = ddprun::init(options);
    say("ready");
    return play->second(context);
  };
  if (argc == 2) {
    const int code = perform();
    if (aborts_afterwards) std::abort();
    return code;
  }
  try {
    return perform();
  } catch (const DistError& failure) {
    return report(failure);
  }
}
