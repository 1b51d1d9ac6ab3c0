#include "base/random_id.h"

#include <sys/random.h>

#include <vector>

#include "base/assert.h"
#include "base/hex.h"

namespace ddprun {

std::string random_hex(int bytes) {
  std::vector<std::uint8_t> raw(static_cast<std::size_t>(bytes));
  DDPRUN_ASSERT(getrandom(raw.data(), raw.size(), 0) == static_cast<ssize_t>(raw.size()),
                "getrandom never falls short below 256 bytes");
  return to_hex(raw);
}

std::uint64_t random_seed() {
  std::uint64_t seed = 0;
  DDPRUN_ASSERT(getrandom(&seed, sizeof seed, 0) == static_cast<ssize_t>(sizeof seed),
                "getrandom never falls short below 256 bytes");
  return seed;
}

}  // namespace ddprun
