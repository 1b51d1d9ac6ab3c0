#include "worker_lib/collective/core/divergence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using Ranks = std::vector<int>;
using Names = std::vector<std::string>;

TEST(Divergence, TheMajorityIsUsual) {
  struct Case {
    std::vector<std::uint64_t> values;
    Ranks usual;
    Ranks others;
  };
  for (const Case& c :
       {Case{{7}, {0}, {}}, Case{{7, 7, 7}, {0, 1, 2}, {}}, Case{{7, 8}, {0}, {1}},
        Case{{7, 8, 8}, {1, 2}, {0}}, Case{{7, 8, 7}, {0, 2}, {1}}, Case{{9, 8, 7}, {0}, {1, 2}},
        Case{{9, 7, 7, 9}, {0, 3}, {1, 2}}, Case{{1, 7, 9, 7, 9}, {1, 3}, {0, 2, 4}}}) {
    const Vote result = vote(c.values);
    EXPECT_EQ(result.usual, c.usual) << testing::PrintToString(c.values);
    EXPECT_EQ(result.others, c.others) << testing::PrintToString(c.values);
  }
}

// Parses "a1 b2": the thing a with hash 1, b with 2. "-": the rank takes no part.
HashTable table(const std::string& text) {
  if (text == "-") return std::nullopt;
  std::vector<NamedHash> result;
  for (std::size_t at = 0; at + 1 < text.size(); at += 3)
    result.push_back({text.substr(at, 1), static_cast<std::uint64_t>(text[at + 1])});
  return result;
}

// Returns, for example, "1|0 2: a b; ...": rank 1 differs from ranks 0 and 2 in a and b.
std::string text_of(const std::vector<Difference>& differences) {
  const auto joined = [](const auto& items, auto text) {
    std::string result;
    for (const auto& item : items) result += (result.empty() ? "" : " ") + text(item);
    return result;
  };
  const auto number = [](int rank) { return std::to_string(rank); };
  std::string result;
  for (const Difference& one : differences)
    result += (result.empty() ? "" : "; ") + joined(one.ranks.others, number) + "|" +
              joined(one.ranks.usual, number) + ": " +
              joined(one.names, [](const std::string& name) { return name; });
  return result;
}

TEST(Divergence, NamesRanksAndThings) {
  struct Case {
    std::vector<std::string> tables;
    std::string differences;
    std::optional<int> culprit;
  };
  for (const Case& c : {
           Case{{"a1 b2", "a1 b2"}, "", {}},
           Case{{"a1 b2", "b2 a1"}, "", {}},
           // With two ranks, it is unknown which one is right.
           Case{{"a1 b2", "a1 b3"}, "1|0: b", {}},
           Case{{"a1 b2", "a1 b3", "a1 b2"}, "1|0 2: b", 1},
           Case{{"a9 b9", "a1 b2", "a1 b2"}, "0|1 2: a b", 0},
           // Each thing is voted on separately.
           Case{{"a1 b2 c3", "a2 b2 c4", "a1 b3 c3"}, "1|0 2: a c; 2|0 1: b", {}},
           Case{{"a1 b1", "a2 b1", "a3 b2"}, "1 2|0: a; 2|0 1: b", {}},
           Case{{"a1", "a2", "a3"}, "1 2|0: a", {}},
           // A missing thing differs.
           Case{{"a1", "a1 b1", "a1 b1"}, "0|1 2: b", 0},
           Case{{"a1", "a1 b1", "a1"}, "1|0 2: b", 1},
           Case{{"", "a1"}, "1|0: a", {}},
           // Ranks that take no part have no vote.
           Case{{"-", "a1", "a1"}, "", {}},
           Case{{"a1", "-", "a2", "a2"}, "0|2 3: a", 0},
           Case{{"-", "-", "a1"}, "", {}},
           Case{{"-", "-"}, "", {}},
       }) {
    std::vector<HashTable> tables;
    for (const std::string& one : c.tables) tables.push_back(table(one));
    const auto differences = find_differences(tables);
    EXPECT_EQ(text_of(differences), c.differences) << testing::PrintToString(c.tables);
    EXPECT_EQ(only_culprit(differences), c.culprit) << testing::PrintToString(c.tables);
  }
}

}  // namespace
}  // namespace ddprun
