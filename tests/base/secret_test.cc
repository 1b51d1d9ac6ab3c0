#include "base/secret.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

namespace ddprun {
namespace {

// Returns the VmFlags line of the mapping that contains the byte.
std::string flags_at(const char* byte) {
  std::ifstream maps("/proc/self/smaps");
  bool is_here = false;
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, end = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      const auto at = reinterpret_cast<std::uintptr_t>(byte);
      is_here = begin <= at && at < end;
    }
    if (is_here && line.starts_with("VmFlags:")) return line;
  }
  return "no such mapping";
}

TEST(Secret, IsKeptOutOfCoreDumps) {
  const Secret secret("0123456789abcdef");
  EXPECT_EQ(secret.view(), "0123456789abcdef");
  EXPECT_NE(flags_at(secret.view().data()).find(" dd"), std::string::npos)
      << flags_at(secret.view().data());
  const auto plain = std::make_unique<char>('x');
  EXPECT_EQ(flags_at(plain.get()).find(" dd"), std::string::npos);
}

TEST(Secret, CopiesAndPartsShareItsPages) {
  Secret part;
  {
    const Secret whole = Secret::filled(100, [](char* place) {
      std::snprintf(place, 100, "job key-of-the-job");
      return std::size_t{18};
    });
    part = whole.part(whole.view().substr(4));
    EXPECT_EQ(part.view().data(), whole.view().data() + 4);
    EXPECT_EQ(Secret(whole).view().data(), whole.view().data());
  }
  EXPECT_EQ(part, Secret("key-of-the-job"));
}

TEST(Secret, IsEmptyWhereItWasMovedFrom) {
  Secret from("key");
  const Secret to = std::move(from);
  EXPECT_EQ(to.view(), "key");
  EXPECT_TRUE(from.empty());  // NOLINT(bugprone-use-after-move): this is tested
  EXPECT_EQ(from.view(), "");
}

TEST(Secret, MayBeEmpty) {
  EXPECT_TRUE(Secret().empty());
  EXPECT_EQ(Secret(""), Secret());
}

}  // namespace
}  // namespace ddprun
