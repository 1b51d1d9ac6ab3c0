#include "worker_lib/serialization/refilled_dict.h"

#include <gtest/gtest.h>

namespace ddprun {
namespace {

using Entries = std::vector<std::pair<c10::IValue, std::int64_t>>;

Entries entries_in(const PickleDict& dict) {
  Entries result;
  for (const auto& entry : dict) result.emplace_back(entry.key(), entry.value().toInt());
  return result;
}

PickleDict dict_of(const Entries& entries) {
  PickleDict dict = make_string_dict();
  for (const auto& [key, value] : entries) dict.insert(key, value);
  return dict;
}

PickleDict refilled(const PickleDict& old, const Entries& entries) {
  RefilledDict dict(old, make_string_dict);
  for (const auto& [key, value] : entries) dict.add(key, value);
  return dict.finish();
}

const Entries kOld{{"a", 1}, {"b", 2}, {"c", 3}};

TEST(RefilledDict, WithTheSameKeysItIsTheOldOne) {
  const PickleDict old = dict_of(kOld);
  const Entries entries{{"a", 4}, {"b", 5}, {"c", 6}};
  const PickleDict result = refilled(old, entries);
  EXPECT_TRUE(result.is(old));
  EXPECT_EQ(entries_in(result), entries);
}

TEST(RefilledDict, WithOtherKeysItHasNoneOfTheOldOne) {
  for (const Entries& entries : {Entries{},
                                 {{"a", 4}},
                                 {{"a", 4}, {"b", 5}},
                                 {{"b", 4}, {"a", 5}, {"c", 6}},
                                 {{"a", 4}, {"x", 5}, {"b", 6}, {"c", 7}},
                                 {{"a", 4}, {"b", 5}, {"c", 6}, {"d", 7}},
                                 {{"a", 4}, {"c", 5}}}) {
    const PickleDict old = dict_of(kOld);
    const PickleDict result = refilled(old, entries);
    EXPECT_EQ(entries_in(result), entries) << entries.size();
    EXPECT_EQ(result.size(), entries.size());
    for (const auto& [key, value] : entries) EXPECT_EQ(result.at(key).toInt(), value);
  }
}

TEST(RefilledDict, GivesTheNextDictToRefill) {
  PickleDict old = make_int_dict();
  const PickleDict inner = make_string_dict();
  old.insert(std::int64_t{3}, inner);
  old.insert(std::int64_t{4}, std::int64_t{7});
  RefilledDict dict(old, make_int_dict);
  EXPECT_FALSE(dict.old_dict(4)) << "it is not the next one";
  const auto found = dict.old_dict(3);
  ASSERT_TRUE(found);
  EXPECT_TRUE(found->is(inner));
  dict.add(std::int64_t{3}, *found);
  EXPECT_FALSE(dict.old_dict(4)) << "it is no dict";
  EXPECT_FALSE(RefilledDict(std::nullopt, make_int_dict).old_dict(3));
}

}  // namespace
}  // namespace ddprun
