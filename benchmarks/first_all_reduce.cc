// The worker that launch_time.py launches. It prints when its first all-reduce has ended. With
// --stay it then waits in generation 0 until it is ended.
//
//   rank R pid P generation G first all-reduce at T      T: CLOCK_BOOTTIME in nanoseconds
#include <ddprun/context.h>
#include <torch/torch.h>
#include <unistd.h>

#include <cstdio>
#include <string>

#include "base/clock.h"

int main(int argc, char** argv) {
  const bool stays = argc == 2 && std::string(argv[1]) == "--stay";
  auto ctx = ddprun::init();
  const torch::Tensor one = torch::ones({1});
  ctx.group().all_reduce(one);
  std::printf("rank %d pid %d generation %ld first all-reduce at %lld\n", ctx.rank(), getpid(),
              static_cast<long>(ctx.generation()),
              static_cast<long long>(ddprun::BootClock::now().time_since_epoch().count()));
  std::fflush(stdout);
  if (stays && ctx.generation() == 0) pause();
  return 0;
}
