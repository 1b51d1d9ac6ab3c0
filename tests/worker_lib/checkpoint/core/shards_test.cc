#include "worker_lib/checkpoint/core/shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "worker_lib/checkpoint/core/state_text.h"

namespace ddprun {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

// Shard: a shard that the test builds itself. Texts stand for tensors.
struct Shard {
  PickleNodeId add(PickleNode node) {
    archive.tree.nodes.push_back(std::move(node));
    return static_cast<PickleNodeId>(archive.tree.nodes.size() - 1);
  }
  PickleNodeId text(std::string text) {
    return add({.kind = PickleKind::kString, .text = std::move(text)});
  }
  PickleNodeId number(std::int64_t number) {
    return add({.kind = PickleKind::kInteger, .integer = number});
  }
  PickleNodeId dict(std::vector<PickleNodeId> items) {
    return add({.kind = PickleKind::kDict, .items = std::move(items)});
  }
  PickleNodeId texts(const std::vector<std::string>& names) {
    PickleNode list{.kind = PickleKind::kList};
    for (const std::string& name : names) list.items.push_back(text(name));
    return add(std::move(list));
  }
  StateArchive archive;
};

// Returns two shards. Shard 0 has tensor a and state 1. Shard 1 has tensors b and c and state
// 0.
std::vector<StateArchive> two_shards(std::int64_t second_number = 1, bool has_b = true) {
  Shard first, second;
  first.archive.tree.top = first.dict(
      {first.text("model"), first.dict({first.text("a"), first.text("A")}), first.text("optimizer"),
       first.dict({first.text("state"), first.dict({first.number(1), first.text("one")}),
                   first.text("param_groups"), first.texts({"groups"})}),
       first.text("step"), first.number(7), first.text("shard"), first.number(0),
       first.text("shards"), first.number(2), first.text("rank"), first.dict({}),
       first.text("model_names"), first.texts({"c", "a", "b"})});
  std::vector<PickleNodeId> model{second.text("c"), second.text("C")};
  if (has_b) {
    model.push_back(second.text("b"));
    model.push_back(second.text("B"));
  }
  second.archive.tree.top = second.dict(
      {second.text("model"), second.dict(model), second.text("optimizer"),
       second.dict({second.text("state"), second.dict({second.number(0), second.text("zero")}),
                    second.text("param_groups"), second.texts({"others"})}),
       second.text("shard"), second.number(second_number), second.text("shards"), second.number(2),
       second.text("rank"), second.dict({second.text("gradients"), second.text("G")})});
  return {first.archive, second.archive};
}

TEST(CheckpointShards, TogetherAreWhatOneRankWouldHaveWritten) {
  const std::vector<StateArchive> shards = two_shards();
  const auto merged = merge_shards(shards);
  ASSERT_TRUE(merged) << merged.error().message();
  Shard expected;
  expected.archive.tree.top = expected.dict(
      {expected.text("model"),
       expected.dict({expected.text("c"), expected.text("C"), expected.text("a"),
                      expected.text("A"), expected.text("b"), expected.text("B")}),
       expected.text("optimizer"),
       expected.dict({expected.text("state"),
                      expected.dict({expected.number(0), expected.text("zero"), expected.number(1),
                                     expected.text("one")}),
                      expected.text("param_groups"), expected.texts({"groups"})}),
       expected.text("step"), expected.number(7), expected.text("ranks"),
       expected.add({.kind = PickleKind::kList,
                     .items = {expected.dict({}),
                               expected.dict({expected.text("gradients"), expected.text("G")})}})});
  EXPECT_EQ(to_lines(merged->tree, 0), to_lines(expected.archive.tree, 0));
}

TEST(CheckpointShards, StoragesOfEachShardStayApart) {
  std::vector<StateArchive> shards = two_shards();
  for (std::size_t s = 0; s < 2; ++s) {
    PickleTree& tree = shards[s].tree;
    tree.tensors.push_back({.storage = {"0", 4, s == 0 ? "aaaa" : "bbbb"},
                            .dtype = {"float32", 4},
                            .sizes = {},
                            .strides = {}});
    tree.nodes[tree.find(tree[tree.top], "model")->items[1]] = {.kind = PickleKind::kTensor};
    shards[s].prefix = "archive/";
    shards[s].records = {{"archive/data/0", "", 0}};
  }
  const auto merged = merge_shards(shards);
  ASSERT_TRUE(merged) << merged.error().message();
  const PickleTree& tree = merged->tree;
  const PickleNode& c = tree[tree.find(tree[tree.top], "model")->items[1]];
  const PickleNode& a = tree[tree.find(tree[tree.top], "model")->items[3]];
  const PickleStorage& of_a = tree.tensors[static_cast<std::size_t>(a.integer)].storage;
  const PickleStorage& of_c = tree.tensors[static_cast<std::size_t>(c.integer)].storage;
  EXPECT_EQ(of_a.key, "0/0");
  EXPECT_EQ(of_a.contents, "aaaa");
  EXPECT_EQ(of_c.key, "1/0");
  EXPECT_EQ(of_c.contents, "bbbb");
  EXPECT_NE(of_a.record, of_c.record) << "they would be one storage";
}

TEST(CheckpointShards, ThoseThatDoNotBelongTogetherAreRefused) {
  const auto why = [](const std::vector<StateArchive>& shards) {
    const auto merged = merge_shards(shards);
    return merged ? "" : merged.error().message();
  };
  EXPECT_THAT(why(two_shards(5)), HasSubstr("shard 1 says that it is shard 5 of 2, there are 2"));
  EXPECT_THAT(why({two_shards()[0]}), HasSubstr("shard 0 says that it is shard 0 of 2"));
  EXPECT_THAT(why(two_shards(1, false)), HasSubstr("names 'b', which no shard has"));
  Shard nothing;
  nothing.archive.tree.top = nothing.dict({});
  EXPECT_THAT(why({nothing.archive}), HasSubstr("shard 0 has no 'shard'"));
}

}  // namespace
}  // namespace ddprun
