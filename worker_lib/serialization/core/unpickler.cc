#include "worker_lib/serialization/core/unpickler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <functional>
#include <iterator>
#include <limits>
#include <set>
#include <span>
#include <unordered_map>

#include "base/concat.h"
#include "base/utf8.h"
#include "worker_lib/serialization/core/little_endian.h"

namespace ddprun {
namespace {

using Ids = std::vector<PickleNodeId>;
using Arguments = std::span<const PickleNodeId>;

constexpr std::array kDtypes = std::to_array<PickleDtype>({
    {"float32", 4},        {"float64", 8},         {"float16", 2},     {"bfloat16", 2},
    {"int64", 8},          {"int32", 4},           {"int16", 2},       {"int8", 1},
    {"uint8", 1},          {"uint16", 2},          {"uint32", 4},      {"uint64", 8},
    {"bool", 1},           {"complex32", 4},       {"complex64", 8},   {"complex128", 16},
    {"float8_e4m3fn", 1},  {"float8_e4m3fnuz", 1}, {"float8_e5m2", 1}, {"float8_e5m2fnuz", 1},
    {"float8_e8m0fnu", 1},
});

const PickleDtype* find_dtype(std::string_view name) {
  const auto found = std::ranges::find(kDtypes, name, &PickleDtype::name);
  return found == kDtypes.end() ? nullptr : &*found;
}

constexpr std::size_t kMaxDimensions = 64;
constexpr std::size_t kMaxIntegerBytes = 1024;
constexpr std::size_t kMaxShownText = 100;
constexpr std::size_t kBytesPerValue = 16;  // of copied texts
constexpr std::size_t kMaxKeyNodes = 64;    // a key with tuples is compared as a text
constexpr std::size_t kMaxNameBytes = 200;  // of a global, or the key of a storage
constexpr std::size_t kMostArguments = 64;  // of a call
// Bytes of a usual checkpoint's pickle for each node and each tensor. A pickle with more of them
// makes room by copying.
constexpr std::size_t kUsualBytesPerNode = 24, kUsualBytesPerTensor = 64;
constexpr std::size_t kMostNodesAtFirst = 1 << 20, kMostTensorsAtFirst = 1 << 18;

// Returns a text of the file for a message: printable and short.
std::string shown(std::string_view text) {
  std::string result;
  for (const char c : text.substr(0, kMaxShownText)) result += c >= ' ' && c < 0x7f ? c : '?';
  return text.size() > kMaxShownText ? result + "..." : result;
}

// Names are looked up as "module name", because a module's name may have dots.
std::string dotted(std::string_view name) {
  std::string result = shown(name);
  std::ranges::replace(result, ' ', '.');
  return result;
}

// Returns whether every element of the view lies in a storage of this many elements. Nothing
// overflows.
bool lies_within(const PickleTensor& tensor, std::int64_t storage_elements) {
  if (tensor.offset < 0 || tensor.offset > storage_elements) return false;
  for (const std::int64_t size : tensor.sizes)
    if (size == 0) return true;
  std::int64_t last = tensor.offset;
  for (std::size_t i = 0; i < tensor.sizes.size(); ++i) {
    std::int64_t reach = 0;
    if (__builtin_mul_overflow(tensor.sizes[i] - 1, tensor.strides[i], &reach) ||
        __builtin_add_overflow(last, reach, &last))
      return false;
  }
  return last < storage_elements;
}

bool has_countable_elements(const std::vector<std::int64_t>& sizes) {
  std::int64_t elements = 1;
  for (const std::int64_t size : sizes)
    if (__builtin_mul_overflow(elements, std::max<std::int64_t>(size, 1), &elements)) return false;
  return true;
}

// --- the stack machine ---

// Thrown within this file only, because an opcode's work is many calls deep and each may fail.
struct Refused {
  ErrorKind kind;
  std::string why;
};
template <class... Parts>
[[noreturn]] void refuse_corrupt(const Parts&... why) {
  throw Refused{ErrorKind::kCorrupt, concat(why...)};
}
template <class... Parts>
[[noreturn]] void refuse_unsupported(const Parts&... why) {
  throw Refused{ErrorKind::kUnsupported, concat(why...)};
}

// Kinds of nodes that only a pickle's own calls accept. A finished tree has none.
constexpr auto kGlobal = static_cast<PickleKind>(-1);        // integer: index into kGlobals
constexpr auto kStorageClass = static_cast<PickleKind>(-2);  // integer: index into kStorageClasses
constexpr auto kStorage = static_cast<PickleKind>(-3);       // integer: index into storages_

bool is_name(const PickleNode& node) { return node.kind < PickleKind::kNone; }

struct Storage {
  PickleStorage storage;
  std::string_view dtype;  // of its class
};

// The extent of a node's subtree. size counts a shared node each time that it is met; 0: not yet
// walked.
struct Extent {
  std::size_t size = 0;
  std::size_t height = 0;
};

class Machine {
  using enum PickleKind;

 public:
  Machine(std::string_view pickle, PickleNames names)
      : all_(pickle),
        left_(pickle),
        most_(max_pickle_nodes(pickle.size())),
        is_dcp_(names == PickleNames::kDcp) {
    tree_.nodes.reserve(std::min(pickle.size() / kUsualBytesPerNode, kMostNodesAtFirst));
    const std::size_t tensors = std::min(pickle.size() / kUsualBytesPerTensor, kMostTensorsAtFirst);
    tree_.tensors.reserve(tensors);
    storages_.reserve(tensors);
  }

  Result<PickleTree> run() {
    try {
      while (!has_stopped_) step();
      if (!left_.empty()) refuse_corrupt("bytes follow its end");
      return std::move(tree_);
    } catch (const Refused& refused) {
      return Error{.kind = refused.kind,
                   .doing = "unpickle",
                   .cause = concat("at byte ", opcode_at_, ": ", refused.why)};
    }
  }

 private:
  // Performs one opcode.
  void step() {
    opcode_at_ = all_.size() - left_.size();
    const unsigned char opcode = static_cast<unsigned char>(take(1)[0]);
    switch (opcode) {
      case 0x80: return protocol(take_number(1));
      case 0x95: return frame();
      case '.': return stop();
      case '(': return marks_.push_back(stack_.size());
      case 'N': return push_value(kNone);
      case 0x88: return push_value(kBool, 1);
      case 0x89: return push_value(kBool, 0);
      case 'K': return push_integer(static_cast<std::int64_t>(take_number(1)));
      case 'M': return push_integer(static_cast<std::int64_t>(take_number(2)));
      case 'J': return push_integer(static_cast<std::int32_t>(take_number(4)));
      case 0x8a: return push_long(take(take_number(1)));
      case 0x8b: return push_long(take(take_number(4)));
      case 'G': return push_double(take(8));
      case 'X': return push_string(take(take_number(4)));
      case 0x8c: return push_string(take(take_number(1)));
      case 0x8d: return push_string(take(take_number(8)));
      case 'C': return push_text(kBytes, take(take_number(1)));
      case 'B': return push_text(kBytes, take(take_number(4)));
      case 0x8e: return push_text(kBytes, take(take_number(8)));
      case ']': return push_value(kList);
      case ')': return push_value(kTuple);
      case '}': return push_value(kDict);
      case 0x8f: return push_value(kSet);
      case 't': return gather(kTuple, first_since_mark());
      case 0x85: return gather(kTuple, first_of(1));
      case 0x86: return gather(kTuple, first_of(2));
      case 0x87: return gather(kTuple, first_of(3));
      case 0x91: return gather(kSet, first_since_mark());
      case 'a': return append(kList, first_of(1));
      case 'e': return append(kList, first_since_mark());
      case 0x90: return append(kSet, first_since_mark());
      case 's': return append(kDict, first_of(2));
      case 'u': return append(kDict, first_since_mark());
      case 'q': return memoize(take_number(1));
      case 'r': return memoize(take_number(4));
      case 0x94: return memoize(memo_.size() + sparse_memo_.size());
      case 'h': return recall(take_number(1));
      case 'j': return recall(take_number(4));
      case 'c': return global();
      case 0x93: return stack_global();
      case 'Q': return persistent();
      case 'R': return reduce();
      case 'b': return build();
      case 0x81:  // only with classes, which are called like functions
        if (is_dcp_) return reduce();
        break;
      default: break;
    }
    refuse_unsupported("opcode ", opcode, " is not one that torch.save writes");
  }

  // --- input ---

  std::string_view take(std::uint64_t bytes) {
    if (bytes > left_.size()) refuse_corrupt("the pickle is cut off");
    const std::string_view taken = left_.substr(0, static_cast<std::size_t>(bytes));
    left_.remove_prefix(taken.size());
    return taken;
  }

  std::uint64_t take_number(std::size_t bytes) { return read_little_endian(take(bytes)); }

  std::string_view take_line() {
    const std::size_t end = left_.find('\n');
    if (end == std::string_view::npos) refuse_corrupt("the pickle is cut off");
    const std::string_view line = take(end);
    take(1);
    return line;
  }

  static void protocol(std::uint64_t version) {
    if (version < 2 || version > 5)
      refuse_unsupported("pickle protocol ", version, ", 2 to 5 are read");
  }

  // The end of a frame is ignored: frames exist only for reading ahead.
  void frame() {
    if (take_number(8) > left_.size()) refuse_corrupt("the pickle is cut off");
  }

  // --- the stack ---

  // Counts values of which one input byte can make many: a value in the memo can be copied again
  // and again.
  void charge(std::size_t values) {
    charged_ += values;
    expect_at_most(charged_);
  }

  void expect_at_most(std::size_t values) const {
    if (values > most_)
      refuse_unsupported("it has more than ", most_, " values, the most for a pickle of its size");
  }

  // Makes a node without contents, of one that was discarded if there is one.
  PickleNodeId make(PickleKind kind) {
    charge(1);
    if (discarded_.empty()) {
      tree_.nodes.emplace_back().kind = kind;
      is_shared_.push_back(false);
      return static_cast<PickleNodeId>(tree_.nodes.size() - 1);
    }
    const PickleNodeId id = discarded_.back();
    discarded_.pop_back();
    tree_.nodes[id].kind = kind;
    return id;
  }

  PickleNode& push_node(PickleKind kind) {
    stack_.push_back(make(kind));
    return tree_.nodes[stack_.back()];
  }

  void push_value(PickleKind kind, std::int64_t integer = 0) { push_node(kind).integer = integer; }

  void push_integer(std::int64_t value) { push_value(kInteger, value); }

  void push_text(PickleKind kind, std::string_view text) { push_node(kind).text = text; }

  void push_string(std::string_view text) {
    if (!is_utf8(text)) refuse_corrupt("a text is not UTF-8");
    push_text(kString, text);
  }

  // The items stay where they were, too.
  void push_items(PickleKind kind, Ids items) {
    charge(items.size());
    for (const PickleNodeId item : items) is_shared_[item] = true;
    push_node(kind).items = std::move(items);
  }

  void push_double(std::string_view big_endian) {
    std::uint64_t bits = 0;
    for (const char c : big_endian) bits = (bits << 8) | static_cast<unsigned char>(c);
    push_node(kDouble).real = std::bit_cast<double>(bits);
  }

  // Pushes a two's complement integer of any length. Bytes that only repeat the sign are
  // dropped.
  void push_long(std::string_view bytes) {
    if (bytes.size() > kMaxIntegerBytes)
      refuse_unsupported("an integer of ", bytes.size(), " bytes, ", kMaxIntegerBytes,
                         " are the most that is read");
    const bool negative = !bytes.empty() && (bytes.back() & 0x80) != 0;
    const char sign = negative ? '\xff' : '\0';
    while (bytes.size() > 8 && bytes.back() == sign) bytes.remove_suffix(1);
    if (bytes.size() > 8 || (bytes.size() == 8 && ((bytes.back() & 0x80) != 0) != negative))
      return push_text(kBigInteger, bytes);
    std::uint64_t value = negative ? ~std::uint64_t{0} : 0;
    std::memcpy(&value, bytes.data(), bytes.size());
    push_integer(static_cast<std::int64_t>(value));
  }

  PickleNodeId pop() {
    const PickleNodeId id = top();
    stack_.pop_back();
    return id;
  }

  PickleNodeId top() const {
    if (stack_.size() == (marks_.empty() ? 0 : marks_.back())) refuse_corrupt("its stack is empty");
    return stack_.back();
  }

  // Returns where the last `count` values of the stack begin.
  std::size_t first_of(std::size_t count) const {
    if (stack_.size() - (marks_.empty() ? 0 : marks_.back()) < count)
      refuse_corrupt("its stack is empty");
    return stack_.size() - count;
  }

  // Removes the last mark, and returns where the values after it begin.
  std::size_t first_since_mark() {
    if (marks_.empty()) refuse_corrupt("it has no mark on its stack");
    const std::size_t first = marks_.back();
    marks_.pop_back();
    return first;
  }

  // Makes one value of those from `first` on.
  void gather(PickleKind kind, std::size_t first) {
    charge(stack_.size() - first);
    const PickleNodeId id = make(kind);
    tree_.nodes[id].items.assign(stack_.begin() + static_cast<std::ptrdiff_t>(first), stack_.end());
    stack_.resize(first);
    stack_.push_back(id);
  }

  // Discards a node that only the caller has, so that the next one takes its place. Most nodes are
  // arguments of a tensor, and are not needed when it is made. levels: of its items.
  void discard(PickleNodeId id, int levels) {
    if (is_shared_[id]) return;
    PickleNode& it = tree_.nodes[id];
    if (it.kind == kTuple && levels > 0)
      for (const PickleNodeId item : it.items) discard(item, levels - 1);
    it.kind = kNone;
    it.integer = 0;
    it.real = 0;
    it.text.clear();
    it.items.clear();
    discarded_.push_back(id);
  }

  PickleNode& node(PickleNodeId id, PickleKind kind) {
    if (tree_.nodes[id].kind != kind)
      refuse_corrupt("it has something else where ", to_text(kind), " should be");
    return tree_.nodes[id];
  }

  // Appends the values from `first` on to the container below them.
  void append(PickleKind kind, std::size_t first) {
    if (first == (marks_.empty() ? 0 : marks_.back())) refuse_corrupt("its stack is empty");
    append(stack_[first - 1], kind, std::span(stack_).subspan(first));
    stack_.resize(first);
  }

  void append(PickleNodeId id, PickleKind kind, Arguments items) {
    PickleNode& container = node(id, kind);
    if (kind == kDict && items.size() % 2 != 0) refuse_corrupt("a key without a value");
    charge(items.size());
    container.items.insert(container.items.end(), items.begin(), items.end());
  }

  // --- the memo ---

  // Numbers that follow each other are in a vector.
  void memoize(std::uint64_t index) {
    const PickleNodeId id = top();
    is_shared_[id] = true;
    if (index < memo_.size()) {
      memo_[static_cast<std::size_t>(index)] = id;
    } else if (index > memo_.size()) {
      sparse_memo_[index] = id;
    } else {
      memo_.push_back(id);
      sparse_memo_.erase(index);
    }
  }

  void recall(std::uint64_t index) {
    if (index < memo_.size()) return stack_.push_back(memo_[static_cast<std::size_t>(index)]);
    const auto found = sparse_memo_.find(index);
    if (found == sparse_memo_.end())
      refuse_corrupt("it refers to value ", index, ", which it has not");
    stack_.push_back(found->second);
  }

  // --- names and their meanings ---

  void global() {
    const std::string_view module = take_line();
    const std::string_view name = take_line();
    push_global(concat(module, " ", name));
  }

  void stack_global() {
    const PickleNodeId name = pop();
    const PickleNodeId module = pop();
    push_global(name_in(module) + " " + name_in(name));
  }

  void push_global(const std::string& name) {
    if (const auto found = std::ranges::find(kGlobals, name, &Global::name);
        found != kGlobals.end())
      return push_value(kGlobal, found - kGlobals.begin());
    if (const auto found = std::ranges::find(kDcpGlobals, name, &Global::name);
        is_dcp_ && found != kDcpGlobals.end())
      return push_value(kGlobal, std::ssize(kGlobals) + (found - kDcpGlobals.begin()));
    if (const auto found = std::ranges::find(kStorageClasses, name, &StorageClass::name);
        found != kStorageClasses.end())
      return push_value(kStorageClass, found - kStorageClasses.begin());
    if (name.starts_with("torch ") && find_dtype(std::string_view(name).substr(6)))
      return push_text(kDtype, std::string_view(name).substr(6));
    refuse_unsupported(
        "it names ", dotted(name),
        ", which is not allowed: only tensors and plain data are read, no code is run");
  }

  std::int64_t integer(PickleNodeId id) { return node(id, kInteger).integer; }

  const std::string& name_in(PickleNodeId id) {
    const std::string& text = node(id, kString).text;
    if (text.size() > kMaxNameBytes) refuse_corrupt("a name of ", text.size(), " bytes");
    return text;
  }

  // ("storage", class, key, location, elements). The location is ignored: the storage is read to
  // the CPU.
  void persistent() {
    const PickleNodeId id = pop();
    node(id, kTuple);
    const Ids& parts = tree_.nodes[id].items;
    if (parts.size() != 5) refuse_corrupt("a call with the wrong arguments");
    const PickleNode& its_class = tree_.nodes[parts[1]];
    if (node(parts[0], kString).text != "storage" || its_class.kind != kStorageClass)
      refuse_corrupt("it refers to something outside of the pickle that is not a storage");
    Storage its{.storage = {.key = name_in(parts[2])},
                .dtype = kStorageClasses[static_cast<std::size_t>(its_class.integer)].dtype};
    const std::int64_t elements = integer(parts[4]);
    const std::int64_t element_bytes = its.dtype.empty() ? 1 : find_dtype(its.dtype)->bytes;
    if (elements < 0 || __builtin_mul_overflow(elements, element_bytes, &its.storage.bytes))
      refuse_corrupt("a storage of ", elements, " elements");
    storages_.push_back(std::move(its));
    discard(id, 1);
    push_value(kStorage, static_cast<std::int64_t>(storages_.size() - 1));
  }

  void reduce() {
    const PickleNodeId tuple = pop();
    node(tuple, kTuple);
    const PickleNodeId function = pop();
    call(function, tuple);
    discard(function, 0);
    discard(tuple, 2);
  }

  void call(PickleNodeId function, PickleNodeId tuple) {
    if (tree_.nodes[function].kind != kGlobal)
      refuse_corrupt("it calls something that is not a function");
    const Global& global = global_of(function);
    if (!global.call) refuse_corrupt("it calls a class that is only a name here");
    const Ids& parts = tree_.nodes[tuple].items;
    if (parts.size() < global.least || parts.size() > global.most)
      refuse_corrupt("a call with the wrong arguments");
    std::array<PickleNodeId, kMostArguments> copy{};  // because a push moves the nodes
    std::ranges::copy(parts, copy.begin());
    (this->*global.call)(Arguments(copy).first(parts.size()));
  }

  void make_dict(Arguments) { push_value(kDict); }

  void make_set(Arguments parts) {
    push_items(kSet, parts.empty() ? Ids() : node(parts[0], kList).items);
  }

  void make_size(Arguments parts) { push_items(kTuple, integers_of(parts[0])); }

  void rebuild_tensor_v2(Arguments parts) { rebuild_tensor(parts, /*has_dtype=*/false); }
  void rebuild_tensor_v3(Arguments parts) { rebuild_tensor(parts, /*has_dtype=*/true); }

  void rebuild_tensor(Arguments parts, bool has_dtype) {
    const PickleNode& its_storage = tree_.nodes[parts[0]];
    if (its_storage.kind != kStorage) refuse_corrupt("a tensor without a storage");
    const Storage& storage = storages_[static_cast<std::size_t>(its_storage.integer)];
    PickleTensor tensor{.storage = storage.storage,
                        .offset = integer(parts[1]),
                        .sizes = dimensions(parts[2]),
                        .strides = dimensions(parts[3]),
                        .requires_grad = node(parts[4], kBool).integer != 0};
    if (has_dtype != storage.dtype.empty())
      refuse_corrupt("a tensor and a storage that do not fit together");
    tensor.dtype = *find_dtype(has_dtype ? node(parts[6], kDtype).text : storage.dtype);
    // Views that show the conjugate or the negative of the stored values.
    const std::size_t plain = has_dtype ? 7 : 6;
    if (parts.size() > plain && tree_.nodes[parts[plain]].kind != kNone &&
        !node(parts[plain], kDict).items.empty())
      refuse_unsupported("a tensor that is a conjugate or negative view");
    charge(1 + tensor.sizes.size());
    const std::int64_t elements = storage.storage.bytes / tensor.dtype.bytes;
    if (tensor.sizes.size() != tensor.strides.size() || !has_countable_elements(tensor.sizes))
      refuse_corrupt("a tensor with impossible sizes and strides");
    if (!lies_within(tensor, elements))
      refuse_corrupt("a tensor reaches beyond the ", elements, " elements of its storage '",
                     shown(tensor.storage.key), "'");
    push_tensor(std::move(tensor));
  }

  void push_tensor(PickleTensor tensor) {
    tree_.tensors.push_back(std::move(tensor));
    push_value(kTensor, static_cast<std::int64_t>(tree_.tensors.size() - 1));
  }

  // (tensor, requires_grad, hooks[, state])
  void rebuild_parameter(Arguments parts) {
    PickleTensor tensor = tree_.tensors[static_cast<std::size_t>(node(parts[0], kTensor).integer)];
    tensor.requires_grad = node(parts[1], kBool).integer != 0;
    charge(1 + tensor.sizes.size());
    push_tensor(std::move(tensor));
  }

  // (function, class, its arguments, attributes): a tensor with attributes, which are dropped.
  void rebuild_from_type(Arguments parts) {
    const auto is = [this](PickleNodeId id, Call call) {
      return tree_.nodes[id].kind == kGlobal && global_of(id).call == call;
    };
    if (!is(parts[0], &Machine::rebuild_tensor_v2) && !is(parts[0], &Machine::rebuild_tensor_v3))
      refuse_unsupported("a tensor that is rebuilt by another function than torch's own");
    if (!is(parts[1], nullptr)) refuse_unsupported("a tensor of a class that is not torch's own");
    node(parts[2], kTuple);
    call(parts[0], parts[2]);
  }

  // Valid until the next node is made.
  const Ids& integers_of(PickleNodeId tuple) {
    const Ids& items = node(tuple, kTuple).items;
    charge(items.size());
    for (const PickleNodeId id : items) (void)integer(id);
    return items;
  }

  std::vector<std::int64_t> dimensions(PickleNodeId tuple) {
    const Ids& items = integers_of(tuple);
    if (items.size() > kMaxDimensions)
      refuse_unsupported("a tensor of ", items.size(), " dimensions");
    std::vector<std::int64_t> result;
    result.reserve(items.size());
    for (const PickleNodeId id : items) {
      result.push_back(tree_.nodes[id].integer);
      if (result.back() < 0) refuse_corrupt("a tensor with a negative size or stride");
    }
    return result;
  }

  void make_device(Arguments parts) {
    std::string device = name_in(parts[0]);
    if (parts.size() == 2) device += concat(":", integer(parts[1]));
    push_text(kDevice, device);
  }

  // encode("\u00ff", "latin1"): how protocol 2 writes bytes.
  void encode(Arguments parts) {
    const std::string& text = node(parts[0], kString).text;
    charge(text.size() / kBytesPerValue);
    if (name_in(parts[1]) != "latin1") refuse_corrupt("bytes in an encoding other than latin1");
    std::string bytes;
    for (std::size_t i = 0; i < text.size(); ++i) {
      const auto first = static_cast<unsigned char>(text[i]);
      if (first < 0x80) {
        bytes += text[i];
      } else if (first <= 0xc3) {  // two bytes, below U+0100; is_utf8() has returned true
        bytes += static_cast<char>(((first & 3) << 6) | (text[++i] & 0x3f));
      } else {
        refuse_corrupt("bytes that are not latin1");
      }
    }
    push_text(kBytes, bytes);
  }

  // Attributes of an OrderedDict (_metadata of a state dict): checked like everything, and
  // dropped. Those of an object are kept.
  void build() {
    const PickleNodeId state = pop();
    if (tree_.nodes[top()].kind != kDict)
      refuse_unsupported("it sets attributes of something that is not an OrderedDict");
    if (!is_dcp_) return;
    if (tree_.nodes[state].kind == kDict) {
      const Ids items = tree_.nodes[state].items;
      for (const PickleNodeId item : items) is_shared_[item] = true;
      return append(top(), kDict, items);
    }
    const PickleNodeId key = make(kString);
    tree_.nodes[key].text = "state";
    append(top(), kDict, std::array{key, state});
  }

  // A function or a class with one argument, which says all.
  void keep_argument(Arguments parts) {
    is_shared_[parts[0]] = true;
    stack_.push_back(parts[0]);
  }
  void keep_arguments(Arguments parts) { push_items(kTuple, Ids(parts.begin(), parts.end())); }

  // --- the end ---

  void stop() {
    tree_.top = pop();
    if (!stack_.empty() || !marks_.empty()) refuse_corrupt("values are left on its stack");
    if (is_name(tree_.nodes[tree_.top])) refuse_corrupt("it is a name, not a value");
    extents_.assign(tree_.nodes.size(), {});
    check_tree(tree_.top, 0);
    has_stopped_ = true;
  }

  // Refuses what PickleTree guarantees not to have. Nodes that were met before are not walked
  // again.
  Extent check_tree(PickleNodeId id, std::size_t depth) {
    const PickleNode& it = tree_.nodes[id];
    if (is_name(it)) refuse_corrupt("a name where a value is expected");
    Extent& its = extents_[id];
    if (its.size == kOpen) refuse_corrupt("a value contains itself");
    if (depth + its.height > kMaxPickleDepth)
      refuse_unsupported("it is nested deeper than ", kMaxPickleDepth);
    if (its.size != 0) return its;
    its.size = kOpen;
    Extent found{.size = 1};
    for (const PickleNodeId item : it.items) {
      const Extent under = check_tree(item, depth + 1);
      found.size += under.size;
      found.height = std::max(found.height, under.height + 1);
      expect_at_most(found.size);
    }
    if (it.kind == kDict || it.kind == kSet) check_keys(it);
    return its = found;
  }

  void check_keys(const PickleNode& container) {
    const std::size_t step = container.kind == kDict ? 2 : 1;
    if (has_different_texts(container.items, step) || has_different_integers(container.items, step))
      return;
    std::set<std::string> keys;
    for (std::size_t i = 0; i < container.items.size(); i += step) {
      const PickleNodeId id = container.items[i];
      if (extents_[id].size > kMaxKeyNodes)
        refuse_unsupported("a key of more than ", kMaxKeyNodes, " values");
      std::string key;
      spell_key(id, key);
      charge(key.size() / kBytesPerValue);
      if (!keys.insert(key).second) refuse_corrupt("key ", shown(key), " is there twice");
    }
  }

  // Return whether all keys are texts, or integers, and differ. Almost all are, and need not be
  // spelled to be compared.
  bool has_different_texts(const Ids& items, std::size_t step) {
    texts_.clear();
    hashes_.clear();
    for (std::size_t i = 0; i < items.size(); i += step) {
      const PickleNode& key = tree_.nodes[items[i]];
      if (key.kind != kString) return false;
      charge(key.text.size() / kBytesPerValue);
      texts_.emplace_back(key.text);
      hashes_.push_back(std::hash<std::string_view>()(key.text));
    }
    std::ranges::sort(hashes_);  // faster than texts
    if (std::ranges::adjacent_find(hashes_) == hashes_.end()) return true;
    std::ranges::sort(texts_);
    return std::ranges::adjacent_find(texts_) == texts_.end();
  }

  bool has_different_integers(const Ids& items, std::size_t step) {
    integers_.clear();
    for (std::size_t i = 0; i < items.size(); i += step) {
      const PickleNode& key = tree_.nodes[items[i]];
      if (key.kind != kInteger) return false;
      integers_.push_back(key.integer);
    }
    std::ranges::sort(integers_);
    return std::ranges::adjacent_find(integers_) == integers_.end();
  }

  void spell_key(PickleNodeId id, std::string& text) const {
    const PickleNode& it = tree_.nodes[id];
    switch (it.kind) {
      case kNone: text += "None"; return;
      case kBool: text += it.integer != 0 ? "True" : "False"; return;
      case kInteger: text += std::to_string(it.integer); return;
      case kDouble: text += concat(std::bit_cast<std::uint64_t>(it.real), "f"); return;
      case kBigInteger:
      case kString:
      case kBytes:
      case kDtype:
      case kDevice:
        text += concat(static_cast<int>(it.kind), ".", it.text.size(), "'", it.text, "'");
        return;
      case kTuple:
        text += "(";
        for (const PickleNodeId item : it.items) spell_key(item, text), text += ",";
        text += ")";
        return;
      case kDict:
        if (!is_dcp_) break;
        text += "{";
        for (const PickleNodeId item : it.items) spell_key(item, text), text += ",";
        text += "}";
        return;
      default: break;
    }
    refuse_corrupt("a key is ", to_text(it.kind));
  }

  // What the names mean. "__builtin__" is protocol 2's name for "builtins".
  using Call = void (Machine::*)(Arguments);
  struct Global {
    std::string_view name;
    Call call;                // null: a class of tensors
    std::size_t least, most;  // arguments
  };
  static constexpr std::array kGlobals = std::to_array<Global>({
      {"collections OrderedDict", &Machine::make_dict, 0, 0},
      {"torch._utils _rebuild_tensor_v2", &Machine::rebuild_tensor_v2, 6, 7},
      {"torch._utils _rebuild_tensor_v3", &Machine::rebuild_tensor_v3, 7, 8},
      {"torch._utils _rebuild_parameter", &Machine::rebuild_parameter, 3, 3},
      {"torch._utils _rebuild_parameter_with_state", &Machine::rebuild_parameter, 4, 4},
      {"torch._tensor _rebuild_from_type_v2", &Machine::rebuild_from_type, 4, 4},
      {"torch Tensor", nullptr, 0, 0},
      {"torch.nn.parameter Parameter", nullptr, 0, 0},
      {"torch Size", &Machine::make_size, 1, 1},
      {"torch device", &Machine::make_device, 1, 2},
      {"_codecs encode", &Machine::encode, 2, 2},
      {"__builtin__ set", &Machine::make_set, 0, 1},
      {"builtins set", &Machine::make_set, 0, 1},
      {"__builtin__ frozenset", &Machine::make_set, 0, 1},
      {"builtins frozenset", &Machine::make_set, 0, 1},
  });

  static constexpr std::array kDcpGlobals = std::to_array<Global>({
      {"torch.distributed.checkpoint.metadata Metadata", &Machine::make_dict, 0, 0},
      {"torch.distributed.checkpoint.metadata TensorStorageMetadata", &Machine::make_dict, 0, 0},
      {"torch.distributed.checkpoint.metadata BytesStorageMetadata", &Machine::make_dict, 0, 0},
      {"torch.distributed.checkpoint.metadata ChunkStorageMetadata", &Machine::make_dict, 0, 0},
      {"torch.distributed.checkpoint.metadata TensorProperties", &Machine::make_dict, 0, 0},
      {"torch.distributed.checkpoint.metadata MetadataIndex", &Machine::make_dict, 0, 0},
      {"torch.distributed.checkpoint.metadata StorageMeta", &Machine::make_dict, 0, 0},
      {"torch.distributed.checkpoint.filesystem _StorageInfo", &Machine::make_dict, 0, 0},
      {"torch.distributed.checkpoint.metadata _MEM_FORMAT_ENCODING", &Machine::keep_argument, 1, 1},
      {"torch.serialization _get_layout", &Machine::keep_argument, 1, 1},
      {"pathlib PosixPath", &Machine::keep_arguments, 0, kMostArguments},
      {"pathlib._local PosixPath", &Machine::keep_arguments, 0, kMostArguments},
  });

  const Global& global_of(PickleNodeId id) const {
    const auto index = static_cast<std::size_t>(tree_.nodes[id].integer);
    return index < kGlobals.size() ? kGlobals[index] : kDcpGlobals[index - kGlobals.size()];
  }

  static constexpr std::size_t kOpen = std::numeric_limits<std::size_t>::max();

  std::string_view all_;
  std::string_view left_;
  std::size_t most_;  // nodes
  bool is_dcp_;
  std::size_t opcode_at_ = 0;
  PickleTree tree_;
  Ids stack_;
  std::vector<std::size_t> marks_;  // how many values of the stack are below each
  std::vector<PickleNodeId> memo_;  // of the numbers from 0
  std::unordered_map<std::uint64_t, PickleNodeId> sparse_memo_;
  std::vector<bool> is_shared_;  // a node that the memo or several nodes may have
  Ids discarded_;                // nodes that nothing has
  std::vector<Storage> storages_;
  std::vector<Extent> extents_;
  std::vector<std::string_view> texts_;  // keys that are compared
  std::vector<std::size_t> hashes_;      // of them
  std::vector<std::int64_t> integers_;
  std::size_t charged_ = 0;
  bool has_stopped_ = false;
};

}  // namespace

std::string_view to_text(PickleKind kind) {
  using enum PickleKind;
  switch (kind) {
    case kNone: return "None";
    case kBool: return "a bool";
    case kInteger: return "an integer";
    case kBigInteger: return "an integer past 64 bits";
    case kDouble: return "a float";
    case kString: return "a text";
    case kBytes: return "bytes";
    case kList: return "a list";
    case kTuple: return "a tuple";
    case kSet: return "a set";
    case kDict: return "a dict";
    case kTensor: return "a tensor";
    case kDtype: return "a dtype";
    case kDevice: return "a device";
  }
  return "a name";
}

std::vector<PickleEntry> entries_of(const PickleNode& dict) {
  std::vector<PickleEntry> entries;
  for (std::size_t i = 0; i + 1 < dict.items.size(); i += 2)
    entries.push_back({dict.items[i], dict.items[i + 1]});
  return entries;
}

const PickleNode* PickleTree::find(const PickleNode& dict, std::string_view key) const {
  if (dict.kind != PickleKind::kDict) return nullptr;
  for (std::size_t i = 0; i + 1 < dict.items.size(); i += 2) {
    const PickleNode& its_key = nodes[dict.items[i]];
    if (its_key.kind == PickleKind::kString && its_key.text == key)
      return &nodes[dict.items[i + 1]];
  }
  return nullptr;
}

Result<PickleTree> unpickle(std::string_view pickle, PickleNames names) {
  return Machine(pickle, names).run();
}

}  // namespace ddprun
