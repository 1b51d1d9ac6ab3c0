#include "worker_lib/serialization/value_pickler.h"

#include <c10/util/flat_hash_map.h>
#include <torch/csrc/jit/serialization/pickler.h>

#include <array>
#include <bit>
#include <cstdint>
#include <deque>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "base/concat.h"
#include "worker_lib/serialization/core/little_endian.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {
namespace {

// Returns whether a tensor is written as its storage, sizes and strides, and nothing else.
bool is_plain(const torch::Tensor& tensor) {
  return tensor.defined() && tensor.is_cpu() && tensor.layout() == torch::kStrided &&
         tensor.has_storage() && !tensor.is_quantized() && !tensor.is_conj() && !tensor.is_neg() &&
         !tensor._is_zerotensor();
}

class ValuePickler {
 public:
  // Returns false if there is a value that LibTorch's pickler must write.
  bool run(const c10::IValue& top) {
    text_ = "\x80\x02";
    if (!value(top)) return false;
    text_ += '.';
    return true;
  }
  Pickled result() { return {std::move(text_), std::move(tensors_)}; }

 private:
  using Memo = std::uint32_t;
  static constexpr Memo kNone = std::numeric_limits<Memo>::max();

  // Values with one owner are met once, and have no place in the memo.
  bool value(const c10::IValue& it) {
    if (!it.isPtrType() || it.isString() || it.use_count() <= 1) return contents(it);
    const void* const address = it.internalToPointer();
    if (const auto known = values_.find(address); known != values_.end()) {
      get(known->second);
      return true;
    }
    if (!contents(it)) return false;
    values_[address] = put();
    return true;
  }

  bool contents(const c10::IValue& it) {
    if (it.isTensor()) return tensor(it.toTensor());
    if (it.isTuple()) return tuple(it.toTupleRef().elements());
    if (it.isDouble()) return real(it.toDouble()), true;
    if (it.isInt()) return integer(it.toInt()), true;
    if (it.isBool()) return truth(it.toBool()), true;
    if (it.isString()) return string(it.toStringRef()), true;
    if (it.isNone()) return text_ += 'N', true;
    if (it.isGenericDict()) return dict(it);
    // Lists of one type are calls of a function.
    if (it.isIntList() || it.isTensorList() || it.isDoubleList() || it.isBoolList() || !it.isList())
      return false;
    text_ += "](";
    for (const c10::IValue& item : it.toListRef())
      if (!value(item)) return false;
    text_ += 'e';
    return true;
  }

  bool dict(const c10::IValue& it) {
    text_ += "}(";
    for (const auto& entry : it.toGenericDict())
      if (!value(entry.key()) || !value(entry.value())) return false;
    text_ += 'u';
    return true;
  }

  template <class Elements>
  bool tuple(const Elements& elements) {
    constexpr std::array kSmall{')', '\x85', '\x86', '\x87'};
    const bool is_small = elements.size() < kSmall.size();
    if (!is_small) text_ += '(';
    for (const c10::IValue& element : elements)
      if (!value(element)) return false;
    text_ += is_small ? kSmall[elements.size()] : 't';
    return true;
  }

  void truth(bool it) { text_ += it ? '\x88' : '\x89'; }

  void integer(std::int64_t it) {
    const auto add = [&](std::string_view opcode, std::size_t bytes) {
      text_ += opcode;
      add_little_endian(text_, static_cast<std::uint64_t>(it), bytes);
    };
    if (it >= 0 && it <= 0xff) return add("K", 1);
    if (it >= 0 && it <= 0xffff) return add("M", 2);
    if (it >= std::numeric_limits<std::int32_t>::min() &&
        it <= std::numeric_limits<std::int32_t>::max())
      return add("J", 4);
    add("\x8a\x08", 8);
  }

  // Big-endian.
  void real(double it) {
    const auto bits = std::bit_cast<std::uint64_t>(it);
    text_ += 'G';
    for (int i = 7; i >= 0; --i) text_ += static_cast<char>((bits >> (8 * i)) & 0xff);
  }

  // it: lives as long as this. Throws kInvalidArgument if the pickle's 4 bytes cannot hold its
  // size.
  void string(std::string_view it) {
    if (it.size() > std::numeric_limits<std::uint32_t>::max())
      refuse(concat("save a checkpoint: it has a text of ", it.size(),
                    " bytes; a text must be shorter than 4 GiB"));
    const auto [known, is_new] = strings_.emplace(it, memos_);
    if (!is_new) return get(known->second);
    text_ += 'X';
    add_little_endian(text_, it.size(), 4);
    text_ += it;
    put();
  }

  // name: "MODULE\nNAME\n". memo: its place, or kNone before the first time.
  void global(std::string_view name, Memo& memo) {
    if (memo != kNone) return get(memo);
    text_ += 'c';
    text_ += name;
    memo = put();
  }

  void integers(c10::IntArrayRef numbers) {
    text_ += '(';
    for (const std::int64_t number : numbers) integer(number);
    text_ += 't';
  }

  bool tensor(const torch::Tensor& it) {
    if (!is_plain(it)) return false;
    global("torch._utils\n_rebuild_tensor_v2\n", rebuild_);
    text_ += '(';
    storage_of(it);
    integer(it.storage_offset());
    integers(it.sizes());
    integers(it.strides());
    truth(it.requires_grad());
    global("collections\nOrderedDict\n", hooks_);
    text_ += ")RtR";
    return true;
  }

  void storage_of(const torch::Tensor& it) {
    const c10::Storage& storage = it.storage();
    const void* const address = storage.unsafeGetStorageImpl();
    if (const auto known = storages_.find(address); known != storages_.end())
      return get(known->second);
    text_ += '(';
    string("storage");
    std::string& name = class_names_[static_cast<std::size_t>(it.scalar_type())];
    if (name.empty())
      name = std::string("torch\n").append(c10::toString(it.scalar_type())).append("Storage\n");
    global(name, classes_[static_cast<std::size_t>(it.scalar_type())]);
    string(keys_.emplace_back(std::to_string(tensors_.size())));
    string("cpu");
    integer(static_cast<std::int64_t>(storage.nbytes() / it.element_size()));
    text_ += "tQ";
    storages_[address] = put();
    tensors_.push_back(it);
  }

  void get(Memo memo) { refer('h', 'j', memo); }
  Memo put() {
    refer('q', 'r', memos_);
    return memos_++;
  }
  void refer(char small, char large, Memo memo) {
    const bool is_small = memo <= 0xff;
    text_ += is_small ? small : large;
    add_little_endian(text_, memo, is_small ? 1 : 4);
  }

  static constexpr auto kDtypes = static_cast<std::size_t>(c10::ScalarType::NumOptions);
  static constexpr auto kNoClasses = [] {
    std::array<Memo, kDtypes> memos;
    memos.fill(kNone);
    return memos;
  }();

  std::string text_;
  std::vector<torch::Tensor> tensors_;
  Memo memos_ = 0;  // places in the memo
  ska::flat_hash_map<const void*, Memo> values_, storages_;
  ska::flat_hash_map<std::string_view, Memo> strings_;
  std::deque<std::string> keys_;  // of storages
  Memo rebuild_ = kNone, hooks_ = kNone;
  std::array<Memo, kDtypes> classes_ = kNoClasses;  // of storages, by the dtype
  std::array<std::string, kDtypes> class_names_;
};

}  // namespace

std::optional<Pickled> pickle_plain(const c10::IValue& top) {
  ValuePickler pickler;
  if (!pickler.run(top)) return std::nullopt;
  return pickler.result();
}

// LibTorch's pickler memoizes values with several owners, so none may be left of the first attempt.
Pickled pickle_of(const c10::IValue& top) {
  if (std::optional<Pickled> plain = pickle_plain(top)) return *std::move(plain);
  return pickle_by_libtorch(top);
}

Pickled pickle_by_libtorch(const c10::IValue& top) {
  Pickled result;
  torch::jit::Pickler pickler(
      [&](const char* data, size_t size) { result.pickle.append(data, size); }, nullptr, nullptr,
      nullptr, nullptr, /*tag_aggregates=*/false);
  pickler.protocol();
  pickler.pushIValue(top);
  pickler.stop();
  result.tensors = pickler.tensorData();
  return result;
}

}  // namespace ddprun
