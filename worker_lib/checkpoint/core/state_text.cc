#include "worker_lib/checkpoint/core/state_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <unordered_map>

#include "base/concat.h"
#include "base/joined.h"

namespace ddprun {
namespace {

constexpr std::size_t kLongestText = 60;  // in bytes of a string

std::string shortest(double value) {
  std::array<char, 32> text;
  const auto end = std::to_chars(text.data(), text.data() + text.size(), value).ptr;
  return {text.data(), end};
}

// Returns the text in quotes, without characters that a terminal interprets.
std::string quoted_text(std::string_view text) {
  std::string shown = "'";
  for (const char c : text.substr(0, kLongestText))
    shown += static_cast<unsigned char>(c) < ' ' || c == '\x7f' ? '?' : c;
  shown += "'";
  if (text.size() > kLongestText)
    shown += concat(" and ", text.size() - kLongestText, " bytes more");
  return shown;
}

class Printer {
  using enum PickleKind;

 public:
  Printer(const PickleTree& tree, std::size_t most) : tree_(tree), most_(most) {}

  std::vector<std::string> print() {
    const PickleNode& top = tree_[tree_.top];
    if (top.kind != kDict) lines_.push_back(describe(top, "the file"));
    print_items(top, "", 0);
    return std::move(lines_);
  }

 private:
  void print_items(const PickleNode& node, const std::string& path, int depth) {
    const bool is_dict = node.kind == kDict;
    const bool is_list = node.kind == kList || node.kind == kTuple || node.kind == kSet;
    if (!is_dict && !is_list) return;
    const std::size_t step = is_dict ? 2 : 1;
    const std::size_t count = node.items.size() / step;
    const std::size_t shown = most_ == 0 ? count : std::min(count, most_);
    for (std::size_t i = 0; i < shown; ++i) {
      const PickleNode& value = tree_[node.items[i * step + step - 1]];
      const std::string key = is_dict ? key_text(tree_[node.items[i * step]]) : std::to_string(i);
      const std::string name = path.empty() ? key : path + "." + key;
      line(depth, key + ": " + describe(value, name));
      print_items(value, name, depth + 1);
    }
    if (shown < count) line(depth, concat("... and ", count - shown, " more"));
  }

  void line(int depth, const std::string& text) {
    lines_.push_back(std::string(static_cast<std::size_t>(2 * depth), ' ') + text);
  }

  static std::string key_text(const PickleNode& key) {
    if (key.kind == kString) {
      const std::string text = quoted_text(key.text);
      return key.text.size() <= kLongestText ? text.substr(1, text.size() - 2) : text;
    }
    if (key.kind == kInteger) return std::to_string(key.integer);
    return std::string(to_text(key.kind));
  }

  std::string describe(const PickleNode& node, const std::string& name) {
    switch (node.kind) {
      case kNone: return "none";
      case kBool: return node.integer ? "true" : "false";
      case kInteger: return std::to_string(node.integer);
      case kBigInteger: return concat("an integer of ", node.text.size(), " bytes");
      case kDouble: return shortest(node.real);
      case kString: return quoted_text(node.text);
      case kBytes: return concat(node.text.size(), " bytes");
      case kDtype:
      case kDevice: return node.text;
      case kDict: return concat("dict of ", node.items.size() / 2);
      case kList: return concat("list of ", node.items.size());
      case kTuple: return concat("tuple of ", node.items.size());
      case kSet: return concat("set of ", node.items.size());
      case kTensor: return describe_tensor(node, name);
    }
    return "";
  }

  std::string describe_tensor(const PickleNode& node, const std::string& name) {
    const PickleTensor& tensor = tree_.tensors[static_cast<std::size_t>(node.integer)];
    std::vector<std::string> sizes;
    std::int64_t elements = 1;
    for (const std::int64_t size : tensor.sizes) {
      sizes.push_back(std::to_string(size));
      elements *= size;
    }
    const auto [owner, is_first] = owners_.emplace(tensor.storage.key, name);
    return concat(tensor.dtype.name, " [", joined(sizes), "], ", elements * tensor.dtype.bytes,
                  " bytes", is_first ? "" : concat(", a view of ", owner->second, "'s storage"));
  }

  const PickleTree& tree_;
  const std::size_t most_;
  std::vector<std::string> lines_;
  std::unordered_map<std::string, std::string> owners_;  // names of the first tensor of each
                                                         // storage, by key
};

}  // namespace

std::vector<std::string> to_lines(const PickleTree& tree, std::size_t most) {
  return Printer(tree, most).print();
}

}  // namespace ddprun
