#include "base/nearest_word.h"

#include <gtest/gtest.h>

#include <vector>

namespace ddprun {
namespace {

const std::vector<std::string>& options() {
  static const std::vector<std::string> words{
      "nproc-per-node", "nnodes", "max-restarts", "env", "role", "rdzv-endpoint"};
  return words;
}

TEST(EditDistance, CountsLettersThatDiffer) {
  EXPECT_EQ(edit_distance("role", "role"), 0u);
  EXPECT_EQ(edit_distance("role", "rol"), 1u);
  EXPECT_EQ(edit_distance("role", "tore"), 2u);
  EXPECT_EQ(edit_distance("", "env"), 3u);
}

TEST(NearestWord, IsWhatATypingErrorMeant) {
  EXPECT_EQ(nearest_word("nproc-per-mode", options()), "nproc-per-node");
  EXPECT_EQ(nearest_word("maxrestort", options()), "max-restarts");
  EXPECT_EQ(nearest_word("rdzv-endpoint-address", {options()}), "");
}

TEST(NearestWord, MayHaveGotAnotherEnd) {
  EXPECT_EQ(nearest_word("nprocs", options()), "nproc-per-node");
  EXPECT_EQ(nearest_word("max", options()), "max-restarts");
  EXPECT_EQ(nearest_word("np", options()), "nproc-per-node");
}

TEST(NearestWord, IsNoneWhereOnlyTheLengthIsAlike) {
  for (const char* typed : {"", "x", "n", "foo", "frobnicate"})
    EXPECT_EQ(nearest_word(typed, options()), "") << typed;
}

}  // namespace
}  // namespace ddprun
