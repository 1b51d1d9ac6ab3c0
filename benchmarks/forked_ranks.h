// For programs that measure the cpu engine: ranks as processes of this program, and a store where they
// meet. One thread.
#pragma once

#include <cstdint>
#include <functional>

#include "base/host_port.h"

namespace ddprun::benchmarks {

struct ForkedRanks {
  int first = 0;  // rank
  int count = 2;
  // Where the store is; the program with rank 0 serves it there. Port 0: any.
  HostPort store{.host = "127.0.0.1", .port = 0};
};

// Calls run(rank, port of the store) in a process for each rank. Returns the worst exit code of them,
// when all have ended.
int run_forked_ranks(const ForkedRanks& ranks,
                     const std::function<void(int rank, std::uint16_t port)>& run);

}  // namespace ddprun::benchmarks
