// A bare TCP connection between two ranks, to measure what the link takes. One thread.
#pragma once

#include <cstddef>
#include <string>

#include "base/unique_fd.h"
#include "ddprun/store.h"

namespace ddprun::benchmarks {

// Every rank calls it; partners are joined. address: where others reach this rank.
UniqueFd join_partner(Store& store, int rank, int partner, const std::string& address);

// So many bytes both ways at once.
void exchange(int cable, const char* sent, char* received, std::size_t bytes);

}  // namespace ddprun::benchmarks
