#include "worker_lib/serialization/checkpoint_state.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/batchnorm.h>

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>

#include "tests/support/expect_dist_error.h"
#include "tests/support/torch.h"
#include "tests/worker_lib/serialization/core/names_of_one_hash.h"
#include "tests/worker_lib/support/pickled.h"
#include "worker_lib/serialization/core/archive_writer.h"

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
  const json back = to_json(entry_of(through_a_file(top), "extra"));
  EXPECT_EQ(back, value);
  EXPECT_EQ(back.dump(), value.dump());  // 3.0 has not become an integer
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

// A file with a dict of these keys.
std::string file_with(const std::vector<PickleNode>& keys) {
  PickleTree tree;
  tree.nodes.push_back({.kind = PickleKind::kDict});
  for (const PickleNode& key : keys) {
    tree.nodes.push_back(key);
    tree.nodes.push_back({.kind = PickleKind::kNone});
    for (int i = 2; i > 0; --i)
      tree.nodes[0].items.push_back(static_cast<PickleNodeId>(tree.nodes.size()) -
                                    static_cast<PickleNodeId>(i));
  }
  std::string file;
  const auto no_crcs = [](const PickleStorage&) { return std::nullopt; };
  EXPECT_TRUE(write_state_archive(tree, no_crcs, [&](const void* data, std::size_t bytes) {
    file.append(static_cast<const char*>(data), bytes);
  }));
  return file;
}

// LibTorch's hash table would double until memory ran out.
TEST(CheckpointState, KeysThatFillTheMemoryOfAHashTableAreRefused) {
  constexpr std::uint64_t kInverse = 0xF1DE83E19937733D;  // of the table's factor, modulo 2^64
  static_assert(kInverse * 11400714819323198485u == 1);
  std::vector<PickleNode> numbers, texts, mixed{{.kind = PickleKind::kBool}};
  for (std::uint64_t i = 0; i < 60; ++i)
    numbers.push_back(
        {.kind = PickleKind::kInteger, .integer = static_cast<std::int64_t>(i * kInverse)});
  for (const std::string& name : names_of_one_hash(60))
    texts.push_back({.kind = PickleKind::kString, .text = name});
  mixed.insert(mixed.end(), numbers.begin(), numbers.end());
  for (const auto& keys : {numbers, texts, mixed})
    EXPECT_DIST_ERROR(read_pickle(file_with(keys), "f.pt"), Kind::kCorrupt,
                      HasSubstr("read f.pt: keys of a dict were chosen"));
  numbers.resize(6);  // too few to do harm
  EXPECT_EQ(read_pickle(file_with(numbers), "f.pt").toGenericDict().size(), 6u);
}

TEST(CheckpointState, KeysThatAreTuplesAreUnsupported) {
  constexpr PickleNodeId kNone = 2;  // the value of the first key
  std::vector<PickleNode> tuples;
  for (std::size_t size = 0; size < 10; ++size) {
    tuples.push_back({.kind = PickleKind::kTuple, .items = std::vector<PickleNodeId>(size, kNone)});
    EXPECT_DIST_ERROR(read_pickle(file_with(tuples), "f.pt"), Kind::kUnsupported,
                      HasSubstr("a key that is a tuple"));
  }
}

TEST(CheckpointState, UsualKeysHaveTheirPlaces) {
  for (const std::int64_t step : {1, 7, 64, 1 << 20}) {
    std::vector<PickleNode> numbers, texts, reals;
    for (std::int64_t i = 0; i < 3000; ++i) {
      numbers.push_back({.kind = PickleKind::kInteger, .integer = i * step});
      texts.push_back({.kind = PickleKind::kString, .text = concat("layer.", i * step, ".weight")});
      reals.push_back({.kind = PickleKind::kDouble, .real = static_cast<double>(i * step) / 8});
    }
    for (const auto& keys : {numbers, texts, reals})
      EXPECT_EQ(read_pickle(file_with(keys), "f.pt").toGenericDict().size(), keys.size()) << step;
  }
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
  const auto tensor = [&](const char* key) { return entry_of(back, key).toTensor(); };
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
    EXPECT_DIST_ERROR(read_pickle(text_of(bytes), "dir/f.pt"), Kind::kCorrupt,
                      HasSubstr("read dir/f.pt: "));
  auto bytes = pickled(make_string_dict());
  bytes.resize(bytes.size() / 2);
  EXPECT_DIST_ERROR(read_pickle(text_of(bytes), "dir/f.pt"), Kind::kCorrupt,
                    HasSubstr("read dir/f.pt: "));
}

// Returns the file of a state dict with two tensors.
std::vector<char> small_file() {
  auto top = make_string_dict();
  top.insert("a", torch::arange(6, torch::kFloat32).view({2, 3}));
  top.insert("b", torch::ones({3}, torch::kBFloat16));
  return pickled(top);
}

TEST(CheckpointState, AFileThatIsCutOffAnywhereIsRefused) {
  const std::vector<char> whole = small_file();
  for (std::size_t bytes = 0; bytes < whole.size(); ++bytes)
    EXPECT_THROW(read_pickle({whole.data(), bytes}, "f.pt"), DistError) << bytes;
}

// A flipped bit may lie where nothing reads it (a date, padding). Then the values are the same.
TEST(CheckpointState, NoFlippedBitChangesWhatIsRead) {
  std::vector<char> bytes = small_file();
  const c10::IValue whole = read_pickle(text_of(bytes), "f.pt");
  const auto same = [&](const c10::IValue& other, const char* key) {
    return torch::equal(entry_of(other, key).toTensor(), entry_of(whole, key).toTensor());
  };
  std::size_t refused = 0;
  for (std::size_t bit = 0; bit < bytes.size() * 8; ++bit) {
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
    try {
      const c10::IValue read = read_pickle(text_of(bytes), "f.pt");
      EXPECT_TRUE(same(read, "a") && same(read, "b")) << "bit " << bit;
    } catch (const DistError&) {
      ++refused;
    }
    bytes[bit / 8] = static_cast<char>(bytes[bit / 8] ^ (1 << (bit % 8)));
  }
  EXPECT_GT(refused, bytes.size());
}

TEST(CheckpointState, AnotherByteOrderIsRefused) {
  std::vector<char> bytes = small_file();
  const std::string_view order = "little";
  const auto at = std::search(bytes.begin(), bytes.end(), order.begin(), order.end());
  ASSERT_NE(at, bytes.end());
  std::copy_n("middle", order.size(), at);
  EXPECT_DIST_ERROR(read_pickle(text_of(bytes), "f.pt", RecordCrcs::kTrust), Kind::kUnsupported,
                    HasSubstr("its byte order is not known"));
}

TEST(CheckpointState, EverythingThatDoesNotFitIsNamedAndStrictIsAChoice) {
  torch::nn::Linear net(3, 2);
  StateDict state;
  state.insert("weight", torch::ones({2, 4}));
  for (int i = 0; i < 10; ++i) state.insert("more" + std::to_string(i), torch::ones({1}));
  EXPECT_DIST_ERROR(
      load_into(*net, state), Kind::kInvalidArgument,
      AllOf(HasSubstr(
                "'weight' is Float of shape [2, 4] in the state dict and Float of shape [2, 3]"),
            HasSubstr("the state dict has no 'bias'"), HasSubstr("'more7' and 2 more")));
  EXPECT_DIST_ERROR(load_into(*net, state, Strict::kNo), Kind::kInvalidArgument,
                    HasSubstr("'weight' is Float of shape [2, 4]"));
  state["weight"] = torch::ones({2, 3});
  const torch::Tensor bias = net->bias.detach().clone();
  const IncompatibleKeys keys = load_into(*net, state, Strict::kNo);
  EXPECT_EQ(keys.missing, std::vector<std::string>{"bias"});
  EXPECT_EQ(keys.unexpected.size(), 10u);
  EXPECT_TRUE(torch::equal(net->weight, torch::ones({2, 3})));
  EXPECT_TRUE(torch::equal(net->bias, bias));
}

TEST(CheckpointState, AMissingEntryIsNamed) {
  EXPECT_DIST_ERROR((SavedValue{make_string_dict(), "f.pt"}.at("model")), Kind::kCorrupt,
                    HasSubstr("read f.pt: it has no 'model'"));
  EXPECT_DIST_ERROR((SavedValue{c10::IValue(3), "f.pt"}.at("model")), Kind::kCorrupt,
                    HasSubstr("a dict was expected"));
}

torch::nn::Sequential make_normed_net(std::int64_t hidden = 4) {
  return torch::nn::Sequential{torch::nn::Linear(3, hidden), torch::nn::BatchNorm1d(hidden),
                               torch::nn::Linear(torch::nn::LinearOptions(hidden, 2).bias(false))};
}

TEST(CheckpointState, AModuleComesBackWithItsBuffers) {
  auto saved = make_normed_net(), loaded = make_normed_net();
  saved->forward(torch::randn({8, 3}));  // changes the running statistics
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
  auto net = make_normed_net();
  const auto before = net->parameters()[0].clone();
  const auto refused = [&](const PickleDict& state, const char* words) {
    EXPECT_DIST_ERROR(load_module_state(*net, state, "f.pt"), Kind::kInvalidArgument,
                      AllOf(HasSubstr("f.pt"), HasSubstr(words)));
    EXPECT_TRUE(torch::equal(net->parameters()[0], before));
  };
  refused(module_state(*make_normed_net(5)),
          "'0.weight' is Float of shape [5, 3] in the file and Float of shape [4, 3]");
  auto missing = module_state(*make_normed_net());
  ASSERT_EQ(missing.erase("2.weight"), 1u);
  refused(missing, "the file has no '2.weight'");
  auto more = module_state(*make_normed_net());
  more.insert("3.bias", torch::ones({1}));
  refused(more, "this model has no '3.bias'");
  auto other_dtype = module_state(*make_normed_net());
  other_dtype.insert_or_assign("0.bias", torch::ones({4}, torch::kFloat64));
  refused(other_dtype, "'0.bias' is Double of shape [4] in the file and Float of shape [4]");
}

TEST(GeneratorOfRank, IsItsOwnOrFollowsFromTheFirst) {
  const auto seeded = [](std::uint64_t seed) {
    return at::detail::createCPUGenerator(seed).get_state();
  };
  const std::vector<torch::Tensor> saved{seeded(1), seeded(2)};
  EXPECT_TRUE(torch::equal(generator_of_rank(saved, 1), saved[1]));
  const torch::Tensor third = generator_of_rank(saved, 2);
  EXPECT_TRUE(torch::equal(third, generator_of_rank(saved, 2)));
  EXPECT_FALSE(torch::equal(third, generator_of_rank(saved, 3)));
  EXPECT_FALSE(torch::equal(third, saved[0]));
  EXPECT_FALSE(torch::equal(third, generator_of_rank({seeded(3), seeded(2)}, 2)));
  at::detail::createCPUGenerator(0).set_state(third);  // the state is valid
}

TEST(ModelHash, IsThatOfNamesDtypesAndShapes) {
  const auto hash = [](auto module) { return model_hash(*module); };
  using torch::nn::Linear;
  const std::string plain = hash(Linear(3, 2));
  EXPECT_EQ(plain.size(), 16u);
  EXPECT_EQ(hash(Linear(3, 2)), plain) << "values do not matter";
  EXPECT_NE(hash(Linear(2, 3)), plain);
  EXPECT_NE(hash(torch::nn::Sequential(Linear(3, 2))), plain);
  Linear wide(3, 2);
  wide->to(torch::kFloat64);
  EXPECT_NE(hash(wide), plain);
  EXPECT_EQ(model_hash(module_state(*wide)), hash(wide));
}

}  // namespace
}  // namespace ddprun
