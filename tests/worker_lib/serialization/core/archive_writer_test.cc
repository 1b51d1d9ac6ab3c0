#include "worker_lib/serialization/core/archive_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "worker_lib/checkpoint/core/state_text.h"
#include "worker_lib/serialization/core/state_archive.h"

namespace ddprun {
namespace {

using testing::HasSubstr;

// Tree: builds a pickle tree.
struct Tree {
  PickleNodeId add(PickleNode node) {
    tree.nodes.push_back(std::move(node));
    return static_cast<PickleNodeId>(tree.nodes.size() - 1);
  }
  PickleNodeId text(std::string text) {
    return add({.kind = PickleKind::kString, .text = std::move(text)});
  }
  PickleNodeId tensor(const std::string& key, std::string_view dtype, std::int64_t element_bytes,
                      std::int64_t offset, std::vector<std::int64_t> sizes,
                      std::vector<std::int64_t> strides) {
    tree.tensors.push_back(
        {.storage = {key, static_cast<std::int64_t>(storages.at(key).size()), storages.at(key)},
         .dtype = {dtype, element_bytes},
         .offset = offset,
         .sizes = std::move(sizes),
         .strides = std::move(strides)});
    return add({.kind = PickleKind::kTensor,
                .integer = static_cast<std::int64_t>(tree.tensors.size() - 1)});
  }
  void finish(std::vector<PickleNodeId> items) {
    tree.top = add({.kind = PickleKind::kDict, .items = std::move(items)});
  }
  std::string file(const std::map<std::string, std::uint32_t>& crcs = {}) const {
    std::string bytes;
    const auto crc_of = [&](const PickleStorage& storage) {
      const auto found = crcs.find(storage.key);
      return found == crcs.end() ? std::nullopt : std::optional(found->second);
    };
    const auto done = write_state_archive(tree, crc_of, [&](const void* data, std::size_t size) {
      bytes.append(static_cast<const char*>(data), size);
    });
    return done ? bytes : "refused: " + done.error().message();
  }
  PickleTree tree;
  std::map<std::string, std::string_view> storages = {};  // contents by key
};

TEST(ArchiveWriter, WhatIsWrittenIsReadAgain) {
  Tree tree;
  tree.storages = {{"2/7", "12345678abcdefgh"}, {"other", "z"}};
  using Kind = PickleKind;
  std::vector<PickleNodeId> values{tree.add({.kind = Kind::kNone}),
                                   tree.add({.kind = Kind::kBool, .integer = 1}),
                                   tree.add({.kind = Kind::kBool})};
  for (const std::int64_t number :
       {std::int64_t{0}, std::int64_t{-1}, std::int64_t{1} << 31, -(std::int64_t{1} << 31) - 1,
        std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min()})
    values.push_back(tree.add({.kind = Kind::kInteger, .integer = number}));
  for (const double number : {0.1, -0.0, 1e300, std::numeric_limits<double>::infinity()})
    values.push_back(tree.add({.kind = Kind::kDouble, .real = number}));
  values.push_back(tree.add({.kind = Kind::kList}));
  values.push_back(tree.add({.kind = Kind::kTuple, .items = {values[0], values[1]}}));
  values.push_back(tree.text("gr\u00fc\u00df"));
  const PickleNodeId list = tree.add({.kind = Kind::kList, .items = values});
  const PickleNodeId first = tree.tensor("2/7", "float32", 4, 0, {2, 2}, {2, 1});
  const PickleNodeId shared = tree.tensor("2/7", "float32", 4, 1, {2}, {2});
  const PickleNodeId byte = tree.tensor("other", "bool", 1, 0, {}, {});
  tree.finish({tree.text("list"), list, tree.text("first"), first, tree.text("shared"), shared,
               tree.text("byte"), byte, tree.text("empty"), tree.add({.kind = Kind::kDict})});
  const std::string file = tree.file();
  const auto read = read_state_archive(file, RecordCrcs::kCheck);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(to_lines(read->tree, 0), to_lines(tree.tree, 0));
  ASSERT_EQ(read->tree.tensors.size(), 3u);
  EXPECT_EQ(read->tree.tensors[1].strides, std::vector<std::int64_t>{2});
  EXPECT_EQ(read->tree.tensors[1].offset, 1);
  EXPECT_EQ(read->tree.tensors[0].storage.key, "0");
  EXPECT_EQ(read->tree.tensors[1].storage.key, "0") << "a storage that is shared is there once";
  EXPECT_EQ(read->tree.tensors[1].storage.record, read->tree.tensors[0].storage.record);
  EXPECT_EQ(read->tree.tensors[0].storage.contents, "12345678abcdefgh");
  EXPECT_EQ(read->tree.tensors[2].storage.contents, "z");
  for (const ZipRecord& record : read->records)
    EXPECT_EQ((record.bytes.data() - file.data()) % 64, 0) << record.name;
}

TEST(ArchiveWriter, ACrcThatIsKnownIsNotMadeAgain) {
  Tree tree;
  tree.storages = {{"0", "abcd"}};
  const PickleNodeId tensor = tree.tensor("0", "float32", 4, 0, {1}, {1});
  tree.finish({tree.text("x"), tensor});
  EXPECT_TRUE(read_state_archive(tree.file({{"0", 0xed82cd11}}), RecordCrcs::kCheck));
  EXPECT_FALSE(read_state_archive(tree.file({{"0", 1}}), RecordCrcs::kCheck));
}

TEST(ArchiveWriter, WhatCheckpointsDoNotHaveIsRefused) {
  Tree bytes;
  bytes.finish({bytes.text("x"), bytes.add({.kind = PickleKind::kBytes, .text = "x"})});
  EXPECT_THAT(bytes.file(), HasSubstr("refused: write it as a file of torch.save"));
}

TEST(ArchiveWriter, ADtypeWithoutAClassOfStoragesIsWrittenWithItsName) {
  Tree odd;
  odd.storages = {{"0", "abcd"}};
  const PickleNodeId tensor = odd.tensor("0", "uint16", 2, 1, {1}, {1});
  odd.finish({odd.text("x"), tensor});
  const std::string file = odd.file();
  const auto read = read_state_archive(file, RecordCrcs::kCheck);
  ASSERT_TRUE(read) << read.error().message();
  EXPECT_EQ(to_lines(read->tree, 0), to_lines(odd.tree, 0));
  EXPECT_EQ(read->tree.tensors[0].storage.bytes, 4);
}

}  // namespace
}  // namespace ddprun
