#include "worker_lib/checkpoint/core/file_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/concat.h"
#include "worker_lib/serialization/core/archive_writer.h"
#include "worker_lib/serialization/core/state_archive.h"

namespace ddprun {
namespace {

using Sizes = std::vector<std::vector<std::int64_t>>;

// Returns the pickle of a shard whose model has a tensor of each number of floats.
std::string shard_pickle(std::size_t shard, const Sizes& floats) {
  PickleTree tree;
  const auto add = [&](PickleNode node) {
    tree.nodes.push_back(std::move(node));
    return static_cast<PickleNodeId>(tree.nodes.size() - 1);
  };
  const auto text = [&](std::string value) {
    return add({.kind = PickleKind::kString, .text = std::move(value)});
  };
  const auto number = [&](std::size_t value) {
    return add({.kind = PickleKind::kInteger, .integer = static_cast<std::int64_t>(value)});
  };
  PickleNode model{.kind = PickleKind::kDict}, names{.kind = PickleKind::kList};
  for (std::size_t s = 0; s < floats.size(); ++s)
    for (std::size_t i = 0; i < floats[s].size(); ++i) {
      const std::int64_t count = floats[s][i];
      names.items.push_back(text(concat(s, ".", i)));
      if (s != shard) continue;
      tree.tensors.push_back({.storage = {std::to_string(i), 4 * count},
                              .dtype = {"float32", 4},
                              .sizes = {count},
                              .strides = {1}});
      model.items.push_back(text(concat(s, ".", i)));
      model.items.push_back(add({.kind = PickleKind::kTensor,
                                 .integer = static_cast<std::int64_t>(tree.tensors.size()) - 1}));
    }
  PickleNode top{.kind = PickleKind::kDict};
  top.items = {text("model"),  add(model),
               text("shard"),  number(shard),
               text("shards"), number(floats.size()),
               text("rank"),   add({.kind = PickleKind::kDict})};
  if (shard == 0) top.items.insert(top.items.end(), {text("model_names"), add(names)});
  tree.top = add(top);
  return pickle_tree(tree)->pickle;
}

Result<FilePlan> plan_of(const Sizes& floats) {
  std::vector<std::string> pickles;
  for (std::size_t s = 0; s < floats.size(); ++s) pickles.push_back(shard_pickle(s, floats));
  return plan_file(pickles);
}

std::string contents_of(std::size_t rank, std::size_t storage, std::int64_t floats) {
  return std::string(static_cast<std::size_t>(4 * floats),
                     static_cast<char>('a' + 10 * rank + storage));
}

// Writes the parts one after the other.
std::string written(const FilePlan& plan, const Sizes& floats) {
  std::string file;
  std::vector<std::uint32_t> crcs(plan.records.size());
  for (std::size_t rank = 0; rank < floats.size(); ++rank) {
    if (plan.parts[rank].bytes() == 0) continue;
    EXPECT_EQ(plan.parts[rank].begin, file.size());
    EXPECT_EQ(plan.parts[rank].begin % FilePlan::kPartAlignment, 0u);
    PartWriter part(plan, rank, [&](const void* data, std::size_t bytes) {
      file.append(static_cast<const char*>(data), bytes);
    });
    std::vector<std::string> contents;
    for (std::size_t i = 0; i < floats[rank].size(); ++i)
      contents.push_back(contents_of(rank, i, floats[rank][i]));
    part.write_records([&](std::size_t i) -> std::string_view { return contents[i]; });
    for (std::size_t i = 0; i < crcs.size(); ++i) crcs[i] |= part.crcs()[i];
    if (rank == plan.last) part.write_directory(crcs);
    EXPECT_EQ(plan.parts[rank].end, file.size());
  }
  EXPECT_EQ(plan.bytes(), file.size());
  return file;
}

TEST(FilePlan, PartsTogetherAreTheArchiveOfTheMergedShards) {
  for (const Sizes& floats : std::vector<Sizes>{{{3, 0, 5000}},
                                                {{1}, {2000, 15}},
                                                {{}, {0, 1}},
                                                {{1000}, {}, {7, 1024, 3000}},
                                                {{4}, {1, 2}, {}}}) {
    const Result<FilePlan> plan = plan_of(floats);
    ASSERT_TRUE(plan) << plan.error().message();
    const std::string file = written(*plan, floats);
    const Result<StateArchive> archive = read_state_archive(file, RecordCrcs::kCheck);
    ASSERT_TRUE(archive) << archive.error().message();
    std::vector<std::string> found, expected;
    for (const PickleTensor& tensor : archive->tree.tensors)
      found.emplace_back(tensor.storage.contents);
    for (std::size_t s = 0; s < floats.size(); ++s)
      for (std::size_t i = 0; i < floats[s].size(); ++i)
        expected.push_back(contents_of(s, i, floats[s][i]));
    EXPECT_THAT(found, testing::UnorderedElementsAreArray(expected));
    const PickleTree& tree = archive->tree;
    EXPECT_EQ(entries_of(*tree.find(tree[tree.top], "model")).size(), expected.size());
  }
}

TEST(FilePlan, ShardsThatDoNotBelongTogetherAreRefused) {
  const Sizes two{{1}, {2}};
  const auto plan = plan_file({shard_pickle(0, two), shard_pickle(0, two)});
  ASSERT_FALSE(plan);
  EXPECT_THAT(plan.error().message(), testing::HasSubstr("shard 1 says that it is shard 0"));
  EXPECT_FALSE(plan_file({"no pickle"}));
}

}  // namespace
}  // namespace ddprun
