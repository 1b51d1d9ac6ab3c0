#include "base/random_id.h"

#include <sys/random.h>

#include <vector>

#include "base/assert.h"
#include "base/hex.h"

namespace ddprun {
namespace {

void fill(void* memory, std::size_t bytes) {
  DDPRUN_ASSERT(getrandom(memory, bytes, 0) == static_cast<ssize_t>(bytes),
                "getrandom never falls short below 256 bytes");
}

}  // namespace

std::string random_hex(int bytes) {
  std::vector<std::uint8_t> raw(static_cast<std::size_t>(bytes));
  fill(raw.data(), raw.size());
  return to_hex(raw);
}

std::uint64_t random_seed() {
  std::uint64_t seed = 0;
  fill(&seed, sizeof seed);
  return seed;
}

}  // namespace ddprun
