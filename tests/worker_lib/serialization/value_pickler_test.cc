#include "worker_lib/serialization/value_pickler.h"

#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/support/torch.h"
#include "worker_lib/serialization/checkpoint_state.h"

namespace ddprun {
namespace {

using Limits = std::numeric_limits<std::int64_t>;

// The pickle, and the storages in their order. The tensors are not kept: whether a value has one
// owner changes the pickle.
struct Summary {
  std::string pickle;
  std::vector<const void*> storages;

  explicit Summary(const Pickled& pickled) : pickle(pickled.pickle) {
    for (const torch::Tensor& tensor : pickled.tensors)
      storages.push_back(tensor.storage().unsafeGetStorageImpl());
  }
  bool operator==(const Summary&) const = default;
};

enum class Writer { kOurs, kLibTorchs };

void expect_as_libtorch(const c10::IValue& top, const std::string& what, Writer writer) {
  EXPECT_EQ(pickle_plain(top).has_value(), writer == Writer::kOurs) << what;
  const Summary expected(pickle_by_libtorch(top));
  const Summary found(pickle_of(top));
  EXPECT_EQ(found.pickle, expected.pickle) << what;
  EXPECT_EQ(found.storages, expected.storages) << what;
}

// Makes trees in which values, strings and storages appear more than once.
class RandomTree {
 public:
  explicit RandomTree(unsigned seed) : random_(seed) {}

  c10::IValue value(int depth) {
    const std::size_t kind = below(depth > 0 ? 10 : 6);
    if (kind >= 6 && !made_.empty() && below(4) == 0) return made_[below(made_.size())];
    switch (kind) {
      case 0: return {};
      case 1: return below(2) == 0;
      case 2: return kIntegers[below(kIntegers.size())];
      case 3: return static_cast<double>(below(1000)) / 7;
      case 4: return text();
      case 5: return tensor();
      case 6: return keep(tuple(depth));
      case 7: return keep(list(depth));
      default: return keep(dict(depth));
    }
  }

 private:
  static constexpr std::array kIntegers =
      std::to_array<std::int64_t>({0, 1, 255, 256, 65535, 65536, -1, 2147483647, 2147483648,
                                   -2147483648, -2147483649, Limits::max(), Limits::min()});

  std::size_t below(std::size_t bound) { return random_() % bound; }
  std::string text() {
    constexpr std::array kTexts{"", "weight", "storage", "cpu", "0", "1", "momentum_buffer"};
    return below(3) == 0 ? std::to_string(below(1000)) + std::string(below(300), 'x')
                         : kTexts[below(kTexts.size())];
  }
  torch::Tensor tensor() {
    constexpr std::array kTypes{torch::kFloat32,     torch::kFloat64, torch::kBFloat16,
                                torch::kInt64,       torch::kBool,    torch::kUInt16,
                                torch::kComplexFloat};
    if (!tensors_.empty() && below(3) == 0) {
      const torch::Tensor known = tensors_[below(tensors_.size())];
      return below(2) == 0 || known.dim() == 0 ? known : known.select(0, 0);
    }
    std::vector<std::int64_t> sizes(below(4));
    for (std::int64_t& size : sizes) size = static_cast<std::int64_t>(below(5)) + 1;
    if (!sizes.empty() && below(8) == 0) sizes.push_back(300);
    torch::Tensor made = torch::zeros(sizes, kTypes[below(kTypes.size())]);
    if (sizes.size() > 1 && below(2) == 0) made = made.transpose(0, 1);
    if (made.is_floating_point() && below(3) == 0) made.set_requires_grad(true);
    if (below(2) == 0) tensors_.push_back(made);
    return made;
  }
  c10::IValue tuple(int depth) {
    std::vector<c10::IValue> elements(below(6));
    for (c10::IValue& element : elements) element = value(depth - 1);
    return c10::ivalue::Tuple::create(std::move(elements));
  }
  c10::IValue list(int depth) {
    auto items = make_list();
    for (std::size_t i = below(5); i > 0; --i) items.push_back(value(depth - 1));
    return items;
  }
  c10::IValue dict(int depth) {
    PickleDict entries(c10::AnyType::get(), c10::AnyType::get());
    for (std::size_t i = below(6); i > 0; --i) {
      if (below(3) == 0)
        entries.insert_or_assign(static_cast<std::int64_t>(below(300)), value(depth - 1));
      else
        entries.insert_or_assign(text(), value(depth - 1));
    }
    return entries;
  }
  c10::IValue keep(c10::IValue made) {
    if (below(3) == 0) made_.push_back(made);
    return made;
  }

  std::mt19937 random_;
  std::vector<torch::Tensor> tensors_;
  std::vector<c10::IValue> made_;
};

TEST(ValuePickler, WritesWhatLibTorchWrites) {
  const torch::NoGradGuard no_grad;
  for (unsigned seed = 0; seed < 500; ++seed) {
    RandomTree tree(seed);
    expect_as_libtorch(tree.value(/*depth=*/6), "seed " + std::to_string(seed), Writer::kOurs);
    if (HasFailure()) return;
  }
}

// Places in the memo beyond 255 and storages with keys of several digits.
TEST(ValuePickler, WritesManyTensorsAsLibTorch) {
  PickleDict model = make_string_dict();
  std::vector<torch::Tensor> kept;
  for (int i = 0; i < 3000; ++i) {
    kept.push_back(torch::zeros({i % 7 + 1}));
    model.insert("weight" + std::to_string(i), kept.back());
    model.insert(std::to_string(i), torch::zeros({2, 3}));
  }
  expect_as_libtorch(model, "many tensors", Writer::kOurs);
}

TEST(ValuePickler, LeavesOtherValuesToLibTorch) {
  const auto expect_left = [](const c10::IValue& top, const std::string& what) {
    expect_as_libtorch(top, what, Writer::kLibTorchs);
  };
  expect_left(c10::List<std::int64_t>({1, 2}), "a list of integers");
  expect_left(c10::List<torch::Tensor>({torch::ones({2})}), "a list of tensors");
  expect_left(torch::quantize_per_tensor(torch::ones({2}), 0.5, 1, torch::kQUInt8),
              "a quantized tensor");
  expect_left(torch::zeros({2}, torch::kComplexFloat).conj(), "a conjugate view");
  expect_left(c10::Device(c10::kCPU), "a device");
  // The tensor has one owner, so it gets no place in the memo.
  expect_left(c10::ivalue::Tuple::create(torch::ones({2}), c10::List<std::int64_t>({1, 2})),
              "a tensor before a list of integers");
}

}  // namespace
}  // namespace ddprun
