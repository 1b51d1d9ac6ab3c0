#include "worker_lib/checkpoint/core/state_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace ddprun {
namespace {

using testing::ElementsAre;

// TreeMaker: builds a tree of nodes. Each call returns the number of the node that it adds.
class TreeMaker {
 public:
  PickleNodeId add(PickleNode node) {
    tree_.nodes.push_back(std::move(node));
    return static_cast<PickleNodeId>(tree_.nodes.size() - 1);
  }
  PickleNodeId text(const std::string& value) {
    return add({.kind = PickleKind::kString, .text = value});
  }
  PickleNodeId number(std::int64_t value) {
    return add({.kind = PickleKind::kInteger, .integer = value});
  }
  PickleNodeId of(PickleKind kind, std::vector<PickleNodeId> items) {
    return add({.kind = kind, .items = std::move(items)});
  }
  PickleNodeId tensor(const std::string& storage, std::vector<std::int64_t> sizes) {
    tree_.tensors.push_back({.storage = {.key = storage, .bytes = 1000},
                             .dtype = {.name = "float32", .bytes = 4},
                             .sizes = std::move(sizes)});
    return add({.kind = PickleKind::kTensor,
                .integer = static_cast<std::int64_t>(tree_.tensors.size()) - 1});
  }
  std::vector<std::string> lines(PickleNodeId top, std::size_t most = 0) {
    tree_.top = top;
    return to_lines(tree_, most);
  }

 private:
  PickleTree tree_;
};

TEST(StateText, SetsInWhatIsWithinAndNamesSharedStorages) {
  TreeMaker make;
  const auto model = make.of(PickleKind::kDict,
                             {make.text("0.weight"), make.tensor("7", {32, 6}), make.text("tied"),
                              make.tensor("7", {}), make.text("none"), make.tensor("8", {0, 3})});
  const auto list =
      make.of(PickleKind::kList, {make.number(-5), make.add({.kind = PickleKind::kNone}),
                                  make.add({.kind = PickleKind::kDouble, .real = 0.1}),
                                  make.add({.kind = PickleKind::kBool, .integer = 1}),
                                  make.add({.kind = PickleKind::kDtype, .text = "int8"})});
  EXPECT_THAT(
      make.lines(make.of(PickleKind::kDict, {make.text("model"), model, make.number(3), list})),
      ElementsAre("model: dict of 3", "  0.weight: float32 [32, 6], 768 bytes",
                  "  tied: float32 [], 4 bytes, a view of model.0.weight's storage",
                  "  none: float32 [0, 3], 0 bytes", "3: list of 5", "  0: -5", "  1: none",
                  "  2: 0.1", "  3: true", "  4: int8"));
}

TEST(StateText, ShowsNoMoreThanIsAskedFor) {
  TreeMaker make;
  std::vector<PickleNodeId> items;
  for (int i = 0; i < 5; ++i) items.push_back(make.number(i));
  const auto list = make.of(PickleKind::kTuple, items);
  EXPECT_THAT(make.lines(list, 2), ElementsAre("tuple of 5", "0: 0", "1: 1", "... and 3 more"));
  EXPECT_EQ(make.lines(list).size(), 6u);
}

// A file must not control the terminal, nor fill it with text.
TEST(StateText, ShowsTextsAsTextsOnly) {
  TreeMaker make;
  const auto dict = make.of(PickleKind::kDict,
                            {make.text("a\x1b[2J\n"), make.text("b\x1b]0;x\x07"),
                             make.text(std::string(100, 'k')), make.text(std::string(70, 'v'))});
  EXPECT_THAT(make.lines(dict), ElementsAre("a?[2J?: 'b?]0;x?'",
                                            "'" + std::string(60, 'k') + "' and 40 bytes more: '" +
                                                std::string(60, 'v') + "' and 10 bytes more"));
}

TEST(StateText, ShowsATopThatIsNoDict) {
  TreeMaker make;
  EXPECT_THAT(make.lines(make.tensor("0", {2})), ElementsAre("float32 [2], 8 bytes"));
}

}  // namespace
}  // namespace ddprun
