#include "worker_lib/cpu_kernels/stream_copy.h"

#include <gtest/gtest.h>

#include <vector>

#include "base/rng.h"

namespace ddprun {
namespace {

TEST(StreamBytes, CopiesWhatLiesWhereverAndTouchesNothingElse) {
  Rng rng(7);
  std::vector<char> from(20'000);
  for (char& one : from) one = static_cast<char>(rng.below(256));
  for (int trial = 0; trial < 2000; ++trial) {
    const std::size_t bytes = rng.below(trial % 2 ? 200 : 9000);
    const std::size_t in = rng.below(200), out = rng.below(200);
    std::vector<char> to(20'000, 'x'), expected = to;
    std::copy_n(from.begin() + static_cast<std::ptrdiff_t>(in), bytes,
                expected.begin() + static_cast<std::ptrdiff_t>(out));
    stream_bytes(to.data() + out, from.data() + in, bytes);
    ASSERT_TRUE(to == expected) << bytes << " bytes from " << in << " to " << out;
  }
}

TEST(StreamBytes, OfNothingIsNothing) { stream_bytes(nullptr, nullptr, 0); }

}  // namespace
}  // namespace ddprun
