#include "worker_lib/serialization/state_snapshot.h"

#include <gtest/gtest.h>

#include "tests/support/torch.h"
#include "tests/worker_lib/support/pickled.h"
#include "worker_lib/serialization/checkpoint_state.h"

namespace ddprun {
namespace {

c10::IValue tree_of(const std::vector<std::pair<std::string, torch::Tensor>>& tensors) {
  PickleDict dict = make_string_dict();
  for (const auto& [name, tensor] : tensors) dict.insert(name, tensor_for_file(tensor));
  return dict;
}

torch::Tensor in(const c10::IValue& tree, const std::string& key) {
  return entry_of(tree, key).toTensor();
}

TEST(StateSnapshot, IsNotChangedByWhatComesLater) {
  const torch::Tensor weight = torch::rand({3, 4});
  StateSnapshot snapshot;
  const c10::IValue taken = snapshot.take(tree_of({{"w", weight}}));
  const torch::Tensor before = weight.clone();
  weight.zero_();
  EXPECT_TRUE(torch::equal(in(taken, "w"), before));
}

TEST(StateSnapshot, UsesItsMemoryAgain) {
  torch::Tensor weight = torch::rand({3, 4});
  const torch::Tensor bias = torch::rand({4});
  StateSnapshot snapshot;
  const auto pointer = [&] {
    return in(snapshot.take(tree_of({{"b", bias}, {"w", weight}})), "w").const_data_ptr();
  };
  const void* first = pointer();
  EXPECT_EQ(pointer(), first);
  weight = torch::rand({30, 40});
  EXPECT_NE(pointer(), first) << "another shape, other memory";
}

TEST(StateSnapshot, TiedWeightsStayOne) {
  const torch::Tensor weight = torch::rand({3, 4});
  StateSnapshot snapshot;
  const c10::IValue taken = snapshot.take(tree_of({{"a", weight}, {"b", weight}}));
  EXPECT_EQ(in(taken, "a").const_data_ptr(), in(taken, "b").const_data_ptr());
  EXPECT_NE(in(taken, "a").const_data_ptr(), weight.const_data_ptr());
}

TEST(StateSnapshot, LayoutsStayAsTheyAre) {
  const torch::Tensor image = torch::rand({2, 3, 4, 5}).to(torch::MemoryFormat::ChannelsLast);
  const torch::Tensor row = torch::rand({4, 6}).select(1, 2);  // tensor_for_file() copies it
  StateSnapshot snapshot;
  const c10::IValue taken = snapshot.take(tree_of({{"image", image}, {"row", row}}));
  EXPECT_EQ(in(taken, "image").strides(), image.strides());
  EXPECT_TRUE(torch::equal(in(taken, "image"), image));
  EXPECT_TRUE(torch::equal(in(taken, "row"), row));
}

TEST(StateSnapshot, WhatNobodyElseHoldsIsNotCopied) {
  PickleDict dict = make_string_dict();
  const void* made_for_it = nullptr;
  {
    const torch::Tensor tensor = torch::rand({5});
    made_for_it = tensor.const_data_ptr();
    dict.insert("t", tensor);
  }
  StateSnapshot snapshot;
  EXPECT_EQ(in(snapshot.take(dict), "t").const_data_ptr(), made_for_it);
}

TEST(StateSnapshot, ListsTuplesAndNumbersAreAsTheyWere) {
  const torch::Tensor tensor = torch::rand({2});
  PickleDict dict = make_string_dict();
  auto list = make_list();
  list.push_back(tensor);
  list.push_back(7);
  dict.insert("list", list);
  dict.insert("pair", c10::ivalue::Tuple::create(0.5, tensor));
  StateSnapshot snapshot;
  const c10::IValue taken = snapshot.take(dict);
  tensor.zero_();
  const c10::IValue taken_list = entry_of(taken, "list");
  EXPECT_FALSE(taken_list.toListRef()[0].toTensor().eq(0).any().item<bool>());
  EXPECT_EQ(taken_list.toListRef()[1].toInt(), 7);
  const auto pair = entry_of(taken, "pair").toTuple();
  EXPECT_EQ(pair->elements()[0].toDouble(), 0.5);
  EXPECT_FALSE(pair->elements()[1].toTensor().eq(0).any().item<bool>());
}

}  // namespace
}  // namespace ddprun
