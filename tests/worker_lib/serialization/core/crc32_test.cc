#include "worker_lib/serialization/core/crc32.h"

#include <gtest/gtest.h>

#include <boost/crc.hpp>
#include <string>

#include "base/rng.h"

namespace ddprun {
namespace {

std::uint32_t reference(std::string_view bytes) {
  boost::crc_32_type crc;
  crc.process_bytes(bytes.data(), bytes.size());
  return crc.checksum();
}

TEST(Crc32, MatchesThePublishedVectors) {
  EXPECT_EQ(crc32(""), 0u);
  EXPECT_EQ(crc32("123456789"), 0xcbf43926u);
  EXPECT_EQ(crc32_by_tables("123456789"), 0xcbf43926u);
}

TEST(Crc32, IsTheSameByEveryWayAtEveryLengthAndAlignment) {
  Rng rng(7);
  std::string bytes(1200, '\0');
  for (char& c : bytes) c = static_cast<char>(rng.next());
  for (std::size_t size = 0; size < 400; ++size)
    for (std::size_t at = 0; at < 17; at += 4) {
      const std::string_view part = std::string_view(bytes).substr(at, size);
      ASSERT_EQ(crc32(part), reference(part)) << size << " bytes at " << at;
      ASSERT_EQ(crc32_by_tables(part), reference(part)) << size << " bytes at " << at;
    }
  EXPECT_EQ(crc32(bytes), reference(bytes));
}

TEST(Crc32, PiecesDoNotMatter) {
  Rng rng(8);
  std::string bytes(3000, '\0');
  for (char& c : bytes) c = static_cast<char>(rng.next());
  for (int round = 0; round < 100; ++round) {
    std::uint32_t crc = 0;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t size = std::min<std::size_t>(rng.below(500), bytes.size() - at);
      crc = crc32(std::string_view(bytes).substr(at, size), crc);
      at += size;
    }
    ASSERT_EQ(crc, reference(bytes));
  }
}

}  // namespace
}  // namespace ddprun
