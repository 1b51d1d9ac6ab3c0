#include "worker_lib/checkpoint/core/state_text.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <unordered_map>

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
    shown += " and " + std::to_string(text.size() - kLongestText) + " bytes more";
  return shown;
}

class Printer {
 public:
  Printer(const PickleTree& tree, std::size_t most) : tree_(tree), most_(most) {}

  std::vector<std::string> print() {
    const PickleNode& top = tree_[tree_.top];
    if (top.kind != PickleKind::kDict) lines_.push_back(describe(top, "the file"));
    print_items(top, "", 0);
    return std::move(lines_);
  }

 private:
  void print_items(const PickleNode& node, const std::string& path, int depth) {
    const bool is_dict = node.kind == PickleKind::kDict;
    const bool is_list = node.kind == PickleKind::kList || node.kind == PickleKind::kTuple ||
                         node.kind == PickleKind::kSet;
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
    if (shown < count) line(depth, "... and " + std::to_string(count - shown) + " more");
  }

  void line(int depth, const std::string& text) {
    lines_.push_back(std::string(static_cast<std::size_t>(2 * depth), ' ') + text);
  }

  static std::string key_text(const PickleNode& key) {
    if (key.kind == PickleKind::kString) {
      const std::string text = quoted_text(key.text);
      return key.text.size() <= kLongestText ? text.substr(1, text.size() - 2) : text;
    }
    if (key.kind == PickleKind::kInteger) return std::to_string(key.integer);
    return std::string(to_text(key.kind));
  }

  std::string describe(const PickleNode& node, const std::string& name) {
    switch (node.kind) {
      case PickleKind::kNone: return "none";
      case PickleKind::kBool: return node.integer ? "true" : "false";
      case PickleKind::kInteger: return std::to_string(node.integer);
      case PickleKind::kBigInteger:
        return "an integer of " + std::to_string(node.text.size()) + " bytes";
      case PickleKind::kDouble: return shortest(node.real);
      case PickleKind::kString: return quoted_text(node.text);
      case PickleKind::kBytes: return std::to_string(node.text.size()) + " bytes";
      case PickleKind::kDtype:
      case PickleKind::kDevice: return node.text;
      case PickleKind::kDict: return "dict of " + std::to_string(node.items.size() / 2);
      case PickleKind::kList: return "list of " + std::to_string(node.items.size());
      case PickleKind::kTuple: return "tuple of " + std::to_string(node.items.size());
      case PickleKind::kSet: return "set of " + std::to_string(node.items.size());
      case PickleKind::kTensor: return describe_tensor(node, name);
    }
    return "";
  }

  std::string describe_tensor(const PickleNode& node, const std::string& name) {
    const PickleTensor& tensor = tree_.tensors[static_cast<std::size_t>(node.integer)];
    std::string text = std::string(tensor.dtype.name) + " [";
    std::int64_t elements = 1;
    for (std::size_t i = 0; i < tensor.sizes.size(); ++i) {
      text += (i ? ", " : "") + std::to_string(tensor.sizes[i]);
      elements *= tensor.sizes[i];
    }
    text += "], " + std::to_string(elements * tensor.dtype.bytes) + " bytes";
    const auto [owner, is_first] = owners_.emplace(tensor.storage.key, name);
    if (!is_first) text += ", a view of " + owner->second + "'s storage";
    return text;
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
