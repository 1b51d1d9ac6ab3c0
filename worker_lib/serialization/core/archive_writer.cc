#include "worker_lib/serialization/core/archive_writer.h"

#include <algorithm>
#include <bit>
#include <limits>
#include <unordered_map>
#include <vector>

#include "base/concat.h"
#include "worker_lib/serialization/core/little_endian.h"

namespace ddprun {
namespace {

class Pickler {
  using enum PickleKind;

 public:
  explicit Pickler(const PickleTree& tree) : tree_(tree) {}

  // Returns an empty text, or what cannot be written.
  std::string run() {
    text_ = "\x80\x02";
    value(tree_[tree_.top]);
    text_ += '.';
    return refused_;
  }

  const std::string& text() const { return text_; }
  // Returns the tree's storages, by their new numbers.
  const std::vector<PickleStorage>& storages() const { return storages_; }

 private:
  void value(const PickleNode& node) {
    switch (node.kind) {
      case kNone: text_ += 'N'; return;
      case kBool: text_ += node.integer != 0 ? '\x88' : '\x89'; return;
      case kInteger: return integer(node.integer);
      case kDouble: return real(node.real);
      case kString: return string(node.text);
      case kList: return items(node, ']', 'e');
      case kDict: return items(node, '}', 'u');
      case kTuple:
        text_ += '(';
        for (const PickleNodeId item : node.items) value(tree_[item]);
        text_ += 't';
        return;
      case kTensor: return tensor(tree_.tensors[static_cast<std::size_t>(node.integer)]);
      case kBigInteger:
      case kBytes:
      case kSet:
      case kDtype:
      case kDevice: break;
    }
    refused_ = std::string(to_text(node.kind));
  }

  void items(const PickleNode& node, char make, char add) {
    text_ += make;
    if (node.items.empty()) return;
    text_ += '(';
    for (const PickleNodeId item : node.items) value(tree_[item]);
    text_ += add;
  }

  void integer(std::int64_t number) {
    const bool is_short = number >= std::numeric_limits<std::int32_t>::min() &&
                          number <= std::numeric_limits<std::int32_t>::max();
    text_ += is_short ? "J" : "\x8a\x08";
    add_little_endian(text_, static_cast<std::uint64_t>(number), is_short ? 4 : 8);
  }

  // Big-endian.
  void real(double number) {
    const auto bits = std::bit_cast<std::uint64_t>(number);
    text_ += 'G';
    for (int i = 7; i >= 0; --i) text_ += static_cast<char>((bits >> (8 * i)) & 0xff);
  }

  void string(std::string_view text) {
    text_ += 'X';
    add_little_endian(text_, text.size(), 4);
    text_ += text;
  }

  // name: "MODULE NAME".
  void global(std::string name) {
    std::ranges::replace(name, ' ', '\n');
    text_ += "c" + name + "\n";
  }

  void integers(const std::vector<std::int64_t>& numbers) {
    text_ += '(';
    for (const std::int64_t number : numbers) integer(number);
    text_ += 't';
  }

  // _rebuild_tensor_v2(storage, offset, sizes, strides, requires_grad, hooks). A dtype without a
  // class of storages needs v3, with untyped bytes and the dtype as the last argument.
  void tensor(const PickleTensor& tensor) {
    const auto storage_class =
        std::ranges::find(kStorageClasses, tensor.dtype.name, &StorageClass::dtype);
    const bool has_class = storage_class != kStorageClasses.end();
    const auto [number, is_new] =
        number_of_.try_emplace(tensor.storage.key, std::to_string(storages_.size()));
    if (is_new) storages_.push_back(tensor.storage);
    global(has_class ? "torch._utils _rebuild_tensor_v2" : "torch._utils _rebuild_tensor_v3");
    text_ += "((";
    string("storage");
    global(has_class ? std::string(storage_class->name) : "torch.storage UntypedStorage");
    string(number->second);
    string("cpu");
    integer(has_class ? tensor.storage.bytes / tensor.dtype.bytes : tensor.storage.bytes);
    text_ += "tQ";
    integer(tensor.offset);
    integers(tensor.sizes);
    integers(tensor.strides);
    text_ += tensor.requires_grad ? '\x88' : '\x89';
    global("collections OrderedDict");
    text_ += ")R";
    if (!has_class) global(concat("torch ", tensor.dtype.name));
    text_ += "tR";
  }

  const PickleTree& tree_;
  std::string text_;
  std::string refused_;
  std::unordered_map<std::string, std::string> number_of_;
  std::vector<PickleStorage> storages_;
};

}  // namespace

Result<PickledTree> pickle_tree(const PickleTree& tree) {
  Pickler pickler(tree);
  if (const std::string refused = pickler.run(); !refused.empty())
    return Error{.kind = ErrorKind::kUnsupported,
                 .doing = "write it as a file of torch.save",
                 .cause = refused + " is not supported"};
  return PickledTree{pickler.text(), pickler.storages()};
}

std::string storage_record(std::size_t number) { return concat("archive/data/", number); }

Result<void> write_state_archive(const PickleTree& tree, const CrcOf& crc_of,
                                 const WriteBytes& write) {
  const Result<PickledTree> pickled = pickle_tree(tree);
  if (!pickled) return pickled.error();
  ZipWriter zip(write);
  zip.add(std::string(kPickleRecord), pickled->pickle);
  zip.add(std::string(kByteOrderRecord), kByteOrder);
  zip.add(std::string(kVersionRecord), kArchiveVersion);
  std::size_t number = 0;
  for (const PickleStorage& storage : pickled->storages)
    zip.add(storage_record(number++), storage.contents, crc_of(storage));
  zip.finish();
  return {};
}

}  // namespace ddprun
