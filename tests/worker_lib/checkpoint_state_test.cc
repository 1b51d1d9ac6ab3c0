#include "worker_lib/checkpoint_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tests/support/expect_dist_error.h"
#include "tests/worker_lib/pickled.h"

namespace ddprun {
namespace {

using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using Kind = DistError::Kind;

TEST(CheckpointState, JsonComesBackAsItWas) {
  const json value = {
      {"none", nullptr},
      {"yes", true},
      {"integers",
       {0, -1, 2147483647, 2147483648, -2147483649, 1099511627776, INT64_MAX, INT64_MIN}},
      {"reals", {0.1, -0.0, 1e308, 5e-324, 3.0}},
      {"text", "z\xC3\xBCrich \xE2\x82\xAC \"quoted\"\n"},
      {"empty", {{"list", json::array()}, {"dict", json::object()}, {"text", ""}}},
      {"nested", {{{"a", {1, {2, {3}}}}}}}};
  auto top = make_string_dict();
  top.insert("extra", from_json(value));
  const json back = to_json(entry_of(through_a_file(top), "extra", "f.pt"));
  EXPECT_EQ(back, value);
  EXPECT_EQ(back.dump(), value.dump());  // 3.0 is still no integer
}

TEST(CheckpointState, JsonThatNoPickleHoldsIsRefused) {
  json deep = 1;
  for (int i = 0; i < 65; ++i) deep = json::array({deep});
  EXPECT_DIST_ERROR(from_json(deep), Kind::kInvalidArgument, HasSubstr("nested deeper than 64"));
  EXPECT_DIST_ERROR(from_json(UINT64_MAX), Kind::kInvalidArgument,
                    HasSubstr("18446744073709551615 does not fit"));
  EXPECT_DIST_ERROR(from_json("\xff"), Kind::kInvalidArgument, HasSubstr("UTF-8"));
  EXPECT_DIST_ERROR(from_json(json::binary({1})), Kind::kInvalidArgument, HasSubstr("binary"));
}

TEST(CheckpointState, TensorsKeepDtypeStridesAndSharing) {
  const auto base = torch::arange(24, torch::kFloat32).view({2, 3, 4});
  auto top = make_string_dict();
  top.insert("transposed", tensor_for_file(base.transpose(0, 2)));
  top.insert("whole", tensor_for_file(base));
  top.insert("slice", tensor_for_file(torch::rand({1000})[3]));
  top.insert("bf16", tensor_for_file(torch::ones({3}, torch::kBFloat16)));
  top.insert("empty", tensor_for_file(torch::empty({0, 5})));
  top.insert("parameter", tensor_for_file(torch::ones({2}, torch::requires_grad())));
  const c10::IValue back = through_a_file(top);
  const auto tensor = [&](const char* key) { return entry_of(back, key, "f").toTensor(); };
  EXPECT_TRUE(torch::equal(tensor("transposed"), base.transpose(0, 2)));
  EXPECT_EQ(tensor("transposed").strides(), base.transpose(0, 2).strides());
  EXPECT_TRUE(tensor("transposed").is_alias_of(tensor("whole")));
  EXPECT_EQ(tensor("slice").storage().nbytes(), 4u);
  EXPECT_EQ(tensor("bf16").dtype(), torch::kBFloat16);
  EXPECT_EQ(tensor("empty").sizes(), (std::vector<std::int64_t>{0, 5}));
  EXPECT_FALSE(tensor("parameter").requires_grad());
}

TEST(CheckpointState, WhatIsNoArchiveIsCorruptAndNamed) {
  for (const std::vector<char>& bytes : {std::vector<char>{}, std::vector<char>(500, 'x')})
    EXPECT_DIST_ERROR(read_pickle(bytes, "dir/f.pt"), Kind::kCorrupt, HasSubstr("read dir/f.pt: "));
  auto bytes = pickled(make_string_dict());
  bytes.resize(bytes.size() / 2);
  EXPECT_DIST_ERROR(read_pickle(bytes, "dir/f.pt"), Kind::kCorrupt, HasSubstr("read dir/f.pt: "));
}

TEST(CheckpointState, AMissingEntryIsNamed) {
  EXPECT_DIST_ERROR(entry_of(make_string_dict(), "model", "f.pt"), Kind::kCorrupt,
                    HasSubstr("read f.pt: it has no 'model'"));
  EXPECT_DIST_ERROR(entry_of(c10::IValue(3), "model", "f.pt"), Kind::kCorrupt,
                    HasSubstr("a dict was expected"));
}

torch::nn::Sequential make_net(std::int64_t hidden = 4) {
  return torch::nn::Sequential{torch::nn::Linear(3, hidden), torch::nn::BatchNorm1d(hidden),
                               torch::nn::Linear(torch::nn::LinearOptions(hidden, 2).bias(false))};
}

TEST(CheckpointState, AModuleComesBackWithItsBuffers) {
  auto saved = make_net(), loaded = make_net();
  saved->forward(torch::randn({8, 3}));  // moves the running statistics
  const torch::Tensor weight = loaded->parameters()[0];
  load_module_state(*loaded, through_a_file(module_state(*saved)), "f.pt");
  EXPECT_TRUE(weight.is_same(loaded->parameters()[0])) << "the optimizer knows this tensor";
  const auto buffers = loaded->named_buffers();
  EXPECT_EQ(buffers["1.num_batches_tracked"].item<int>(), 1);
  for (const auto& item : saved->named_parameters())
    EXPECT_TRUE(torch::equal(item.value(), loaded->named_parameters()[item.key()]));
  for (const auto& item : saved->named_buffers())
    EXPECT_TRUE(torch::equal(item.value(), buffers[item.key()]));
}

TEST(CheckpointState, AnotherModuleIsRefusedByTheFirstDifferenceAndUntouched) {
  auto net = make_net();
  const auto before = net->parameters()[0].clone();
  const auto refused = [&](const PickleDict& state, const char* words) {
    EXPECT_DIST_ERROR(load_module_state(*net, state, "f.pt"), Kind::kInvalidArgument,
                      AllOf(HasSubstr("f.pt"), HasSubstr(words)));
    EXPECT_TRUE(torch::equal(net->parameters()[0], before));
  };
  refused(module_state(*make_net(5)),
          "'0.weight' is Float of shape [5, 3] in the file and Float of shape [4, 3]");
  auto missing = module_state(*make_net());
  ASSERT_EQ(missing.erase("2.weight"), 1u);
  refused(missing, "the file has no '2.weight'");
  auto more = module_state(*make_net());
  more.insert("3.bias", torch::ones({1}));
  refused(more, "this model has no '3.bias'");
  auto other_dtype = module_state(*make_net());
  other_dtype.insert_or_assign("0.bias", torch::ones({4}, torch::kFloat64));
  refused(other_dtype, "'0.bias' is Double of shape [4] in the file and Float of shape [4]");
}

}  // namespace
}  // namespace ddprun
