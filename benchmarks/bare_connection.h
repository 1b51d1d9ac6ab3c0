// A bare TCP connection between two ranks, to measure the time that the link itself takes. One
// thread.
#pragma once

#include <cstddef>
#include <string>

#include "base/unique_fd.h"
#include "ddprun/store.h"

namespace ddprun::benchmarks {

// Connects this rank to `partner`. Every rank calls it. address: where other ranks reach this one.
UniqueFd connect_to_partner(Store& store, int rank, int partner, const std::string& address);

// Sends and receives `bytes` bytes at the same time. Ends the program if nothing moves for a
// minute.
void exchange(int connection, const char* sent, char* received, std::size_t bytes);

}  // namespace ddprun::benchmarks
