#include "worker_lib/core/archive_writer.h"

#include <array>
#include <bit>
#include <boost/crc.hpp>
#include <limits>
#include <vector>

namespace ddprun {
namespace {

// Little-endian.
void append(std::string& text, std::uint64_t number, std::size_t bytes) {
  for (std::size_t i = 0; i < bytes; ++i) text += static_cast<char>((number >> (8 * i)) & 0xff);
}

// --- the pickle --------------------------------------------------------------------------------

struct StorageClass {
  std::string_view dtype;
  std::string_view name;
};
constexpr std::array kStorageClasses = std::to_array<StorageClass>({
    {"float32", "FloatStorage"},
    {"float64", "DoubleStorage"},
    {"float16", "HalfStorage"},
    {"bfloat16", "BFloat16Storage"},
    {"int64", "LongStorage"},
    {"int32", "IntStorage"},
    {"int16", "ShortStorage"},
    {"int8", "CharStorage"},
    {"uint8", "ByteStorage"},
    {"bool", "BoolStorage"},
    {"complex64", "ComplexFloatStorage"},
    {"complex128", "ComplexDoubleStorage"},
});

class Pickler {
 public:
  explicit Pickler(const PickleTree& tree) : tree_(tree) {}

  // Nothing, or what cannot be written.
  std::string run() {
    text_ = "\x80\x02";
    value(tree_[tree_.top]);
    text_ += '.';
    return refused_;
  }

  const std::string& text() const { return text_; }
  // Keys of storages in the tree, by their new numbers.
  const std::vector<std::string>& storages() const { return storages_; }

 private:
  void value(const PickleNode& node) {
    switch (node.kind) {
      case PickleKind::kNone: text_ += 'N'; return;
      case PickleKind::kBool: text_ += node.integer != 0 ? '\x88' : '\x89'; return;
      case PickleKind::kInteger: return integer(node.integer);
      case PickleKind::kDouble: return real(node.real);
      case PickleKind::kString: return string(node.text);
      case PickleKind::kList: return items(node, ']', 'e');
      case PickleKind::kDict: return items(node, '}', 'u');
      case PickleKind::kTuple:
        text_ += '(';
        for (const PickleNodeId item : node.items) value(tree_[item]);
        text_ += 't';
        return;
      case PickleKind::kTensor:
        return tensor(tree_.tensors[static_cast<std::size_t>(node.integer)]);
      case PickleKind::kBigInteger:
      case PickleKind::kBytes:
      case PickleKind::kSet:
      case PickleKind::kDtype:
      case PickleKind::kDevice: break;
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
    append(text_, static_cast<std::uint64_t>(number), is_short ? 4 : 8);
  }

  // Big-endian.
  void real(double number) {
    const auto bits = std::bit_cast<std::uint64_t>(number);
    text_ += 'G';
    for (int i = 7; i >= 0; --i) text_ += static_cast<char>((bits >> (8 * i)) & 0xff);
  }

  void string(std::string_view text) {
    text_ += 'X';
    append(text_, text.size(), 4);
    text_ += text;
  }

  void global(std::string_view module, std::string_view name) {
    text_.append("c").append(module).append("\n").append(name).append("\n");
  }

  void integers(const std::vector<std::int64_t>& numbers) {
    text_ += '(';
    for (const std::int64_t number : numbers) integer(number);
    text_ += 't';
  }

  // _rebuild_tensor_v2(storage, offset, sizes, strides, requires_grad, hooks).
  void tensor(const PickleTensor& tensor) {
    std::string_view storage_class;
    for (const StorageClass& one : kStorageClasses)
      if (one.dtype == tensor.dtype.name) storage_class = one.name;
    if (storage_class.empty()) {
      refused_ = "a tensor of dtype " + std::string(tensor.dtype.name);
      return;
    }
    const auto [number, is_new] =
        number_of_.try_emplace(tensor.storage.key, std::to_string(storages_.size()));
    if (is_new) storages_.push_back(tensor.storage.key);
    global("torch._utils", "_rebuild_tensor_v2");
    text_ += "((";
    string("storage");
    global("torch", storage_class);
    string(number->second);
    string("cpu");
    integer(tensor.storage.bytes / tensor.dtype.bytes);
    text_ += "tQ";
    integer(tensor.offset);
    integers(tensor.sizes);
    integers(tensor.strides);
    text_ += tensor.requires_grad ? '\x88' : '\x89';
    global("collections", "OrderedDict");
    text_ += ")RtR";
  }

  const PickleTree& tree_;
  std::string text_;
  std::string refused_;
  std::unordered_map<std::string, std::string> number_of_;
  std::vector<std::string> storages_;
};

// --- the zip archive --------------------------------------------------------------------------------

constexpr std::uint16_t kVersion = 45;  // with 64-bit sizes
constexpr std::uint16_t kZip64Extra = 1;
constexpr std::uint16_t kPaddingExtra = 0x4246;  // PyTorch's
constexpr std::size_t kAlignment = 64;
constexpr std::uint64_t kElsewhere = 0xffffffff;  // in the zip64 extra field
constexpr std::uint64_t kDate = 0x21;             // 1980-01-01; there is no clock here

std::uint32_t crc_of_bytes(std::string_view bytes) {
  boost::crc_32_type crc;
  crc.process_bytes(bytes.data(), bytes.size());
  return crc.checksum();
}

class ZipWriter {
 public:
  explicit ZipWriter(const WriteBytes& write) : write_(write) {}

  void add(const std::string& name, std::string_view bytes, std::uint32_t crc) {
    const std::uint64_t header_at = at_;
    std::string header = "PK\3\4";
    append(header, kVersion, 2);
    append_facts(header, crc);
    append(header, name.size(), 2);
    constexpr std::size_t kZip64Bytes = 4 + 16;
    const std::size_t unpadded = header.size() + 2 + name.size() + kZip64Bytes + 4;
    const std::size_t padding = (kAlignment - (at_ + unpadded) % kAlignment) % kAlignment;
    append(header, kZip64Bytes + 4 + padding, 2);
    header += name;
    append(header, kZip64Extra, 2);
    append(header, 16, 2);
    append(header, bytes.size(), 8);
    append(header, bytes.size(), 8);
    append(header, kPaddingExtra, 2);
    append(header, padding, 2);
    header.append(padding, 'Z');
    put(header);
    put(bytes);

    directory_ += "PK\1\2";
    append(directory_, kVersion, 2);
    append(directory_, kVersion, 2);
    append_facts(directory_, crc);
    append(directory_, name.size(), 2);
    append(directory_, 4 + 24, 2);
    append(directory_, 0, 2 + 2 + 2 + 4);  // comment, disk, attributes
    append(directory_, kElsewhere, 4);
    directory_ += name;
    append(directory_, kZip64Extra, 2);
    append(directory_, 24, 2);
    append(directory_, bytes.size(), 8);
    append(directory_, bytes.size(), 8);
    append(directory_, header_at, 8);
    ++entries_;
  }

  void finish() {
    const std::uint64_t directory_at = at_;
    put(directory_);
    const std::uint64_t end_at = at_;
    std::string end = "PK\6\6";
    append(end, 44, 8);  // bytes that follow
    append(end, kVersion, 2);
    append(end, kVersion, 2);
    append(end, 0, 4 + 4);  // disks
    append(end, entries_, 8);
    append(end, entries_, 8);
    append(end, directory_.size(), 8);
    append(end, directory_at, 8);
    end += "PK\6\7";
    append(end, 0, 4);
    append(end, end_at, 8);
    append(end, 1, 4);  // disks in all
    end += "PK\5\6";
    append(end, 0, 2 + 2);
    append(end, 0xffff, 2);
    append(end, 0xffff, 2);
    append(end, kElsewhere, 4);
    append(end, kElsewhere, 4);
    append(end, 0, 2);  // comment
    put(end);
  }

 private:
  // Flags, method, time, date, CRC and sizes, which both headers have.
  static void append_facts(std::string& header, std::uint32_t crc) {
    append(header, 0, 2 + 2 + 2);
    append(header, kDate, 2);
    append(header, crc, 4);
    append(header, kElsewhere, 4);
    append(header, kElsewhere, 4);
  }

  void put(std::string_view bytes) {
    write_(bytes.data(), bytes.size());
    at_ += bytes.size();
  }

  const WriteBytes& write_;
  std::uint64_t at_ = 0;
  std::uint64_t entries_ = 0;
  std::string directory_;
};

}  // namespace

Result<void> write_state_archive(const StateArchive& archive,
                                 const std::unordered_map<std::string, std::uint32_t>& crc_of,
                                 const WriteBytes& write) {
  Pickler pickler(archive.tree);
  if (const std::string refused = pickler.run(); !refused.empty())
    return Error{.kind = ErrorKind::kUnsupported,
                 .doing = "write it as a file of torch.save",
                 .cause = refused + " is not supported"};
  ZipWriter zip(write);
  const auto add = [&](const std::string& name, std::string_view bytes) {
    zip.add("archive/" + name, bytes, crc_of_bytes(bytes));
  };
  add("data.pkl", pickler.text());
  add("byteorder", "little");
  add("version", "3\n");
  std::size_t number = 0;
  for (const std::string& key : pickler.storages()) {
    const std::string_view bytes = archive.storages.at(key);
    const auto crc = crc_of.find(key);
    zip.add("archive/data/" + std::to_string(number++), bytes,
            crc == crc_of.end() ? crc_of_bytes(bytes) : crc->second);
  }
  zip.finish();
  return {};
}

}  // namespace ddprun
