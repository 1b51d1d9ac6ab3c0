// Ranks as processes of this program, and a store through which they find each other. For
// benchmarks of the cpu engine. One thread.
#pragma once

#include <cstdint>
#include <functional>

#include "base/host_port.h"

namespace ddprun::benchmarks {

struct ForkedRanks {
  int first = 0;  // first rank
  int count = 2;
  // Address of the store. The program that has rank 0 serves it there. Port 0: any free one.
  HostPort store{.host = "127.0.0.1", .port = 0};
};

// Calls run(rank, port of the store) in a process for each rank. Waits until all have ended, and
// returns their greatest exit code.
int run_forked_ranks(const ForkedRanks& ranks,
                     const std::function<void(int rank, std::uint16_t port)>& run);

}  // namespace ddprun::benchmarks
