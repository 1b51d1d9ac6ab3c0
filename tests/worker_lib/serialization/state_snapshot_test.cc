#include "worker_lib/serialization/state_snapshot.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <new>

#include "tests/support/torch.h"
#include "tests/worker_lib/support/pickled.h"
#include "worker_lib/serialization/checkpoint_state.h"

#if !defined(DDPRUN_SANITIZED)
namespace {
thread_local bool has_no_memory = false;  // of this thread
}  // namespace

void* operator new(std::size_t bytes) {
  void* const memory = has_no_memory ? nullptr : std::malloc(bytes);
  if (!memory) throw std::bad_alloc();
  return memory;
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
#endif

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

// The memory of tensors that were made for a save is not kept until the next one.
TEST(StateSnapshot, KeepsTheKeysOfASaveAndNoTensor) {
  PickleDict of_parameter = make_string_dict(), states = make_int_dict();
  of_parameter.insert("momentum_buffer", torch::rand({3}));
  states.insert(std::int64_t{0}, of_parameter);
  PickleDict contents = make_string_dict(), optimizer = make_string_dict();
  optimizer.insert("state", states);
  contents.insert("model", tree_of({{"w", torch::rand({3, 4})}}));
  contents.insert("optimizer", optimizer);
  StateSnapshot snapshot;
  snapshot.give_back(contents);
  const StateSnapshot::Dicts dicts = snapshot.take_dicts();
  ASSERT_TRUE(dicts.model && dicts.optimizer_states);
  EXPECT_TRUE(dicts.model->at("w").isNone());
  EXPECT_TRUE(entry_of(dicts.optimizer_states->at(std::int64_t{0}), "momentum_buffer").isNone());
  EXPECT_FALSE(snapshot.take_dicts().model);
  snapshot.give_back(make_string_dict());
  EXPECT_FALSE(snapshot.take_dicts().optimizer_states);
}

// Sanitizers replace operator new themselves.
#if !defined(DDPRUN_SANITIZED)
TEST(StateSnapshot, KeepsNothingWithoutMemory) {
  const auto contents = [] {
    PickleDict dict = make_string_dict();
    dict.insert("model", tree_of({{"w", torch::rand({3, 4})}}));
    return dict;
  };
  StateSnapshot snapshot;
  snapshot.give_back(contents());
  const c10::IValue next = contents();
  has_no_memory = true;
  snapshot.give_back(next);  // an exception would end the program
  has_no_memory = false;
  EXPECT_FALSE(snapshot.take_dicts().model);
  snapshot.give_back(next);
  EXPECT_TRUE(snapshot.take_dicts().model);
}
#endif

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

TEST(StateSnapshot, LiveTensorsAreCopiedAsTensorForFileWouldBe) {
  const torch::Tensor weight = torch::rand({3, 4}).set_requires_grad(true);
  const torch::Tensor slice = torch::rand({4, 6}).select(1, 2);
  const torch::Tensor empty = torch::zeros({0, 3});
  const torch::Tensor turned = weight.detach().t();  // the same memory, another layout
  StateSnapshot snapshot;
  snapshot.begin();
  const torch::Tensor first = snapshot.tensor_for_file(weight);
  EXPECT_FALSE(first.requires_grad());
  EXPECT_TRUE(torch::equal(first, weight));
  EXPECT_NE(first.const_data_ptr(), weight.const_data_ptr());
  EXPECT_TRUE(snapshot.tensor_for_file(weight).is_same(first)) << "tied weights";
  const torch::Tensor second = snapshot.tensor_for_file(turned);
  EXPECT_TRUE(torch::equal(second, turned));
  EXPECT_NE(second.const_data_ptr(), first.const_data_ptr());
  EXPECT_TRUE(snapshot.tensor_for_file(turned).is_same(second));
  const torch::Tensor part = snapshot.tensor_for_file(slice);
  EXPECT_EQ(part.storage().nbytes(), part.nbytes());
  EXPECT_EQ(snapshot.tensor_for_file(empty).sizes(), empty.sizes());
  // What a tree has of the same memory is that copy.
  const c10::IValue tree = snapshot.copy(tree_of({{"w", weight}}));
  EXPECT_EQ(in(tree, "w").const_data_ptr(), first.const_data_ptr());
  snapshot.end();
}

// A later snapshot copies the values again, although the address is the same.
TEST(StateSnapshot, KnowsNoAddressOfTheLastOne) {
  StateSnapshot snapshot;
  const torch::Tensor weight = torch::zeros({4});
  for (const float value : {1.0F, 2.0F}) {
    weight.fill_(value);
    const c10::IValue taken = snapshot.take(tree_of({{"w", weight}}));
    EXPECT_EQ(in(taken, "w")[3].item<float>(), value);
  }
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
