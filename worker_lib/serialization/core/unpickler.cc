#include "worker_lib/serialization/core/unpickler.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <unordered_map>

#include "base/utf8.h"

namespace ddprun {
namespace {

// --- known names ---

constexpr std::array kDtypes = std::to_array<PickleDtype>({
    {"float32", 4},        {"float64", 8},         {"float16", 2},     {"bfloat16", 2},
    {"int64", 8},          {"int32", 4},           {"int16", 2},       {"int8", 1},
    {"uint8", 1},          {"uint16", 2},          {"uint32", 4},      {"uint64", 8},
    {"bool", 1},           {"complex32", 4},       {"complex64", 8},   {"complex128", 16},
    {"float8_e4m3fn", 1},  {"float8_e4m3fnuz", 1}, {"float8_e5m2", 1}, {"float8_e5m2fnuz", 1},
    {"float8_e8m0fnu", 1},
});

enum class Global {
  kOrderedDict,
  kRebuildTensorV2,
  kRebuildTensorV3,
  kRebuildParameter,
  kRebuildParameterWithState,
  kRebuildFromType,
  kTensorClass,
  kParameterClass,
  kSize,
  kDevice,
  kEncode,
  kSet,
  kFrozenSet,
};

struct GlobalName {
  std::string_view name;
  Global global;
};
// "__builtin__" is protocol 2's name for "builtins".
constexpr std::array kGlobals = std::to_array<GlobalName>({
    {"collections OrderedDict", Global::kOrderedDict},
    {"torch._utils _rebuild_tensor_v2", Global::kRebuildTensorV2},
    {"torch._utils _rebuild_tensor_v3", Global::kRebuildTensorV3},
    {"torch._utils _rebuild_parameter", Global::kRebuildParameter},
    {"torch._utils _rebuild_parameter_with_state", Global::kRebuildParameterWithState},
    {"torch._tensor _rebuild_from_type_v2", Global::kRebuildFromType},
    {"torch Tensor", Global::kTensorClass},
    {"torch.nn.parameter Parameter", Global::kParameterClass},
    {"torch Size", Global::kSize},
    {"torch device", Global::kDevice},
    {"_codecs encode", Global::kEncode},
    {"__builtin__ set", Global::kSet},
    {"builtins set", Global::kSet},
    {"__builtin__ frozenset", Global::kFrozenSet},
    {"builtins frozenset", Global::kFrozenSet},
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
[[noreturn]] void refuse_corrupt(std::string why) {
  throw Refused{ErrorKind::kCorrupt, std::move(why)};
}
[[noreturn]] void refuse_unsupported(std::string why) {
  throw Refused{ErrorKind::kUnsupported, std::move(why)};
}

// An entry of the stack: a value of the tree, or an object that only a pickle's own calls
// accept.
struct Entry {
  enum class What { kValue, kMark, kGlobal, kStorageClass, kStorage };
  What what = What::kValue;
  // kValue: a node. kGlobal: a Global. kStorageClass: an index into kStorageClasses. kStorage:
  // an index into storages_.
  std::uint32_t index = 0;
};
using What = Entry::What;

struct Storage {
  PickleStorage storage;
  std::string_view dtype;  // of its class
  std::int64_t elements = 0;
};

// The extent of a node's subtree. size counts a shared node each time that it is met; 0: not yet
// walked.
struct Extent {
  std::size_t size = 0;
  std::size_t height = 0;
};

class Machine {
 public:
  explicit Machine(std::string_view pickle)
      : all_(pickle), left_(pickle), most_(max_pickle_nodes(pickle.size())) {}

  Result<PickleTree> run() {
    try {
      while (!has_stopped_) step();
      if (!left_.empty()) refuse_corrupt("bytes follow its end");
      return std::move(tree_);
    } catch (const Refused& refused) {
      return Error{.kind = refused.kind,
                   .doing = "unpickle",
                   .cause = "at byte " + std::to_string(opcode_at_) + ": " + refused.why};
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
      case '(': return push({What::kMark});
      case 'N': return push_value(PickleKind::kNone);
      case 0x88: return push_value(PickleKind::kBool, 1);
      case 0x89: return push_value(PickleKind::kBool, 0);
      case 'K': return push_integer(static_cast<std::int64_t>(take_number(1)));
      case 'M': return push_integer(static_cast<std::int64_t>(take_number(2)));
      case 'J': return push_integer(static_cast<std::int32_t>(take_number(4)));
      case 0x8a: return push_long(take(take_number(1)));
      case 0x8b: return push_long(take(take_number(4)));
      case 'G': return push_double(take(8));
      case 'X': return push_string(take(take_number(4)));
      case 0x8c: return push_string(take(take_number(1)));
      case 0x8d: return push_string(take(take_number(8)));
      case 'C': return push_text(PickleKind::kBytes, take(take_number(1)));
      case 'B': return push_text(PickleKind::kBytes, take(take_number(4)));
      case 0x8e: return push_text(PickleKind::kBytes, take(take_number(8)));
      case ']': return push_value(PickleKind::kList);
      case ')': return push_value(PickleKind::kTuple);
      case '}': return push_value(PickleKind::kDict);
      case 0x8f: return push_value(PickleKind::kSet);
      case 't': return push_items(PickleKind::kTuple, pop_to_mark());
      case 0x85: return push_items(PickleKind::kTuple, pop_values(1));
      case 0x86: return push_items(PickleKind::kTuple, pop_values(2));
      case 0x87: return push_items(PickleKind::kTuple, pop_values(3));
      case 0x91: return push_items(PickleKind::kSet, pop_to_mark());
      case 'a': return append(PickleKind::kList, pop_values(1));
      case 'e': return append(PickleKind::kList, pop_to_mark());
      case 0x90: return append(PickleKind::kSet, pop_to_mark());
      case 's': return append(PickleKind::kDict, pop_values(2));
      case 'u': return append(PickleKind::kDict, pop_to_mark());
      case 'q': return memoize(take_number(1));
      case 'r': return memoize(take_number(4));
      case 0x94: return memoize(memo_.size());
      case 'h': return recall(take_number(1));
      case 'j': return recall(take_number(4));
      case 'c': return global();
      case 0x93: return stack_global();
      case 'Q': return persistent();
      case 'R': return reduce();
      case 'b': return build();
      default: break;
    }
    refuse_unsupported("opcode " + std::to_string(opcode) + " is not one that torch.save writes");
  }

  // --- input ---

  std::string_view take(std::uint64_t bytes) {
    if (bytes > left_.size()) refuse_corrupt("the pickle is cut off");
    const std::string_view taken = left_.substr(0, static_cast<std::size_t>(bytes));
    left_.remove_prefix(taken.size());
    return taken;
  }

  std::uint64_t take_number(std::size_t bytes) {
    std::uint64_t number = 0;
    const std::string_view taken = take(bytes);
    for (std::size_t i = 0; i < bytes; ++i)
      number |= std::uint64_t{static_cast<unsigned char>(taken[i])} << (8 * i);
    return number;
  }

  std::string_view take_line() {
    const std::size_t end = left_.find('\n');
    if (end == std::string_view::npos) refuse_corrupt("the pickle is cut off");
    const std::string_view line = take(end);
    take(1);
    return line;
  }

  static void protocol(std::uint64_t version) {
    if (version < 2 || version > 5)
      refuse_unsupported("pickle protocol " + std::to_string(version) + ", 2 to 5 are read");
  }

  // The end of a frame is ignored: frames exist only for reading ahead.
  void frame() {
    if (take_number(8) > left_.size()) refuse_corrupt("the pickle is cut off");
  }

  // --- the stack ---

  void push(Entry entry) { stack_.push_back(entry); }

  // Counts values of which one input byte can make many: a value in the memo can be copied again
  // and again.
  void charge(std::size_t values) {
    charged_ += values;
    expect_at_most(charged_);
  }

  void expect_at_most(std::size_t values) const {
    if (values > most_)
      refuse_unsupported("it has more than " + std::to_string(most_) +
                         " values, the most for a pickle of its size");
  }

  PickleNodeId add(PickleNode node) {
    charge(1 + node.items.size());
    tree_.nodes.push_back(std::move(node));
    return static_cast<PickleNodeId>(tree_.nodes.size() - 1);
  }

  void push(PickleNode node) { push({What::kValue, add(std::move(node))}); }

  void push_value(PickleKind kind, std::int64_t integer = 0) {
    push(PickleNode{.kind = kind, .integer = integer});
  }

  void push_integer(std::int64_t value) { push_value(PickleKind::kInteger, value); }

  void push_text(PickleKind kind, std::string_view text) {
    push(PickleNode{.kind = kind, .text = std::string(text)});
  }

  void push_string(std::string_view text) {
    if (!is_utf8(text)) refuse_corrupt("a text is not UTF-8");
    push_text(PickleKind::kString, text);
  }

  void push_items(PickleKind kind, std::vector<PickleNodeId> items) {
    push(PickleNode{.kind = kind, .items = std::move(items)});
  }

  void push_double(std::string_view big_endian) {
    std::uint64_t bits = 0;
    for (const char c : big_endian) bits = (bits << 8) | static_cast<unsigned char>(c);
    push(PickleNode{.kind = PickleKind::kDouble, .real = std::bit_cast<double>(bits)});
  }

  // Pushes a two's complement integer of any length. Bytes that only repeat the sign are
  // dropped.
  void push_long(std::string_view bytes) {
    if (bytes.size() > kMaxIntegerBytes)
      refuse_unsupported("an integer of " + std::to_string(bytes.size()) + " bytes, " +
                         std::to_string(kMaxIntegerBytes) + " are the most that is read");
    const bool negative = !bytes.empty() && (bytes.back() & 0x80) != 0;
    const char sign = negative ? '\xff' : '\0';
    while (bytes.size() > 8 && bytes.back() == sign) bytes.remove_suffix(1);
    if (bytes.size() > 8 || (bytes.size() == 8 && ((bytes.back() & 0x80) != 0) != negative))
      return push_text(PickleKind::kBigInteger, bytes);
    std::uint64_t value = negative ? ~std::uint64_t{0} : 0;
    std::memcpy(&value, bytes.data(), bytes.size());
    push_integer(static_cast<std::int64_t>(value));
  }

  Entry pop() {
    const Entry entry = top();
    stack_.pop_back();
    return entry;
  }

  Entry& top() {
    if (stack_.empty() || stack_.back().what == What::kMark) refuse_corrupt("its stack is empty");
    return stack_.back();
  }

  // Returns the number of a node for a place in the tree.
  PickleNodeId value(Entry entry) {
    if (entry.what == What::kValue) return entry.index;
    // _rebuild_from_type_v2 has a function and a class among its arguments.
    names_.push_back(entry);
    return add({.kind = kName, .integer = static_cast<std::int64_t>(names_.size() - 1)});
  }

  std::vector<PickleNodeId> pop_values(std::size_t count) {
    std::vector<PickleNodeId> values(count);
    for (std::size_t i = count; i > 0; --i) values[i - 1] = value(pop());
    return values;
  }

  std::vector<PickleNodeId> pop_to_mark() {
    const auto mark = std::find_if(stack_.rbegin(), stack_.rend(),
                                   [](const Entry& entry) { return entry.what == What::kMark; });
    if (mark == stack_.rend()) refuse_corrupt("it has no mark on its stack");
    std::vector<PickleNodeId> values;
    values.reserve(static_cast<std::size_t>(mark - stack_.rbegin()));
    for (auto it = mark.base(); it != stack_.end(); ++it) values.push_back(value(*it));
    stack_.erase(mark.base() - 1, stack_.end());
    return values;
  }

  PickleNode& node(Entry entry, PickleKind kind) {
    if (entry.what != What::kValue || tree_.nodes[entry.index].kind != kind)
      refuse_corrupt("it has something else where " + std::string(to_text(kind)) + " should be");
    return tree_.nodes[entry.index];
  }

  bool is_none(Entry entry) const {
    return entry.what == What::kValue && tree_.nodes[entry.index].kind == PickleKind::kNone;
  }

  void append(PickleKind kind, const std::vector<PickleNodeId>& items) {
    PickleNode& container = node(top(), kind);
    if (kind == PickleKind::kDict && items.size() % 2 != 0) refuse_corrupt("a key without a value");
    charge(items.size());
    container.items.insert(container.items.end(), items.begin(), items.end());
  }

  // --- the memo ---

  void memoize(std::uint64_t index) { memo_[index] = top(); }

  void recall(std::uint64_t index) {
    const auto found = memo_.find(index);
    if (found == memo_.end())
      refuse_corrupt("it refers to value " + std::to_string(index) + ", which it has not");
    push(found->second);
  }

  // --- names and their meanings ---

  void global() {
    const std::string_view module = take_line();
    const std::string_view name = take_line();
    push_global(std::string(module) + " " + std::string(name));
  }

  void stack_global() {
    const Entry name = pop();
    const Entry module = pop();
    push_global(name_in(module) + " " + name_in(name));
  }

  void push_global(const std::string& name) {
    if (const auto found = std::ranges::find(kGlobals, name, &GlobalName::name);
        found != kGlobals.end())
      return push({What::kGlobal, static_cast<std::uint32_t>(found->global)});
    if (const auto found = std::ranges::find(kStorageClasses, name, &StorageClass::name);
        found != kStorageClasses.end())
      return push(
          {What::kStorageClass, static_cast<std::uint32_t>(found - kStorageClasses.begin())});
    if (name.starts_with("torch ") && find_dtype(std::string_view(name).substr(6)))
      return push_text(PickleKind::kDtype, std::string_view(name).substr(6));
    refuse_unsupported(
        "it names " + dotted(name) +
        ", which is not allowed: only tensors and plain data are read, no code is run");
  }

  // Returns the entry of a number; if value() made the node from a name, the name's entry.
  Entry entry_of(PickleNodeId id) const {
    const PickleNode& it = tree_.nodes[id];
    return it.kind == kName ? names_[static_cast<std::size_t>(it.integer)]
                            : Entry{What::kValue, id};
  }

  // Returns the arguments of a call. A copy, because a push moves the nodes.
  std::vector<Entry> arguments(PickleNodeId tuple, std::size_t least, std::size_t most) const {
    const PickleNode& it = tree_.nodes[tuple];
    if (it.kind != PickleKind::kTuple || it.items.size() < least || it.items.size() > most)
      refuse_corrupt("a call with the wrong arguments");
    std::vector<Entry> result;
    for (const PickleNodeId id : it.items) result.push_back(entry_of(id));
    return result;
  }

  std::int64_t integer(Entry entry) { return node(entry, PickleKind::kInteger).integer; }

  const std::string& name_in(Entry entry) {
    const std::string& text = node(entry, PickleKind::kString).text;
    if (text.size() > kMaxNameBytes)
      refuse_corrupt("a name of " + std::to_string(text.size()) + " bytes");
    return text;
  }

  // ("storage", class, key, location, elements). The location is ignored: the storage is read to
  // the CPU.
  void persistent() {
    const Entry id = pop();
    node(id, PickleKind::kTuple);
    const std::vector<Entry> parts = arguments(id.index, 5, 5);
    if (node(parts[0], PickleKind::kString).text != "storage" ||
        parts[1].what != What::kStorageClass)
      refuse_corrupt("it refers to something outside of the pickle that is not a storage");
    const StorageClass& its_class = kStorageClasses[parts[1].index];
    Storage storage{.storage = {.key = name_in(parts[2])},
                    .dtype = its_class.dtype,
                    .elements = integer(parts[4])};
    const std::int64_t element_bytes = storage.dtype.empty() ? 1 : find_dtype(storage.dtype)->bytes;
    if (storage.elements < 0 ||
        __builtin_mul_overflow(storage.elements, element_bytes, &storage.storage.bytes))
      refuse_corrupt("a storage of " + std::to_string(storage.elements) + " elements");
    charge(1);
    storages_.push_back(std::move(storage));
    push({What::kStorage, static_cast<std::uint32_t>(storages_.size() - 1)});
  }

  void reduce() {
    const Entry tuple = pop();
    node(tuple, PickleKind::kTuple);
    const Entry function = pop();
    call(function, tuple.index);
  }

  void call(Entry function, PickleNodeId tuple) {
    if (function.what != What::kGlobal) refuse_corrupt("it calls something that is not a function");
    switch (static_cast<Global>(function.index)) {
      case Global::kOrderedDict: (void)arguments(tuple, 0, 0); return push_value(PickleKind::kDict);
      case Global::kRebuildTensorV2:
        return rebuild_tensor(arguments(tuple, 6, 7), /*has_dtype=*/false);
      case Global::kRebuildTensorV3:
        return rebuild_tensor(arguments(tuple, 7, 8), /*has_dtype=*/true);
      case Global::kRebuildParameter: return rebuild_parameter(arguments(tuple, 3, 3));
      case Global::kRebuildParameterWithState: return rebuild_parameter(arguments(tuple, 4, 4));
      case Global::kRebuildFromType: return rebuild_from_type(arguments(tuple, 4, 4));
      case Global::kSize:
        return push_items(PickleKind::kTuple, integers_of(arguments(tuple, 1, 1)[0]));
      case Global::kDevice: return make_device(arguments(tuple, 1, 2));
      case Global::kEncode: return encode(arguments(tuple, 2, 2));
      case Global::kSet:
      case Global::kFrozenSet: {
        const std::vector<Entry> items = arguments(tuple, 0, 1);
        return push_items(PickleKind::kSet, items.empty()
                                                ? std::vector<PickleNodeId>()
                                                : node(items[0], PickleKind::kList).items);
      }
      case Global::kTensorClass:
      case Global::kParameterClass: break;
    }
    refuse_corrupt("it calls a class that is only a name here");
  }

  void rebuild_tensor(const std::vector<Entry>& parts, bool has_dtype) {
    if (parts[0].what != What::kStorage) refuse_corrupt("a tensor without a storage");
    const Storage& storage = storages_[parts[0].index];
    PickleTensor tensor{.storage = storage.storage,
                        .offset = integer(parts[1]),
                        .sizes = dimensions(parts[2]),
                        .strides = dimensions(parts[3]),
                        .requires_grad = node(parts[4], PickleKind::kBool).integer != 0};
    if (has_dtype != storage.dtype.empty())
      refuse_corrupt("a tensor and a storage that do not fit together");
    tensor.dtype = *find_dtype(has_dtype ? node(parts[6], PickleKind::kDtype).text : storage.dtype);
    // Views that show the conjugate or the negative of the stored values.
    const std::size_t plain = has_dtype ? 7 : 6;
    if (parts.size() > plain && !is_none(parts[plain]) &&
        !node(parts[plain], PickleKind::kDict).items.empty())
      refuse_unsupported("a tensor that is a conjugate or negative view");
    charge(1 + tensor.sizes.size());
    const std::int64_t elements = storage.storage.bytes / tensor.dtype.bytes;
    if (tensor.sizes.size() != tensor.strides.size() || !has_countable_elements(tensor.sizes))
      refuse_corrupt("a tensor with impossible sizes and strides");
    if (!lies_within(tensor, elements))
      refuse_corrupt("a tensor reaches beyond the " + std::to_string(elements) +
                     " elements of its storage '" + shown(tensor.storage.key) + "'");
    push_tensor(std::move(tensor));
  }

  void push_tensor(PickleTensor tensor) {
    tree_.tensors.push_back(std::move(tensor));
    push_value(PickleKind::kTensor, static_cast<std::int64_t>(tree_.tensors.size() - 1));
  }

  // (tensor, requires_grad, hooks[, state])
  void rebuild_parameter(const std::vector<Entry>& parts) {
    PickleTensor tensor =
        tree_.tensors[static_cast<std::size_t>(node(parts[0], PickleKind::kTensor).integer)];
    tensor.requires_grad = node(parts[1], PickleKind::kBool).integer != 0;
    charge(1 + tensor.sizes.size());
    push_tensor(std::move(tensor));
  }

  // (function, class, its arguments, attributes): a tensor with attributes, which are dropped.
  void rebuild_from_type(const std::vector<Entry>& parts) {
    const auto is = [](Entry entry, Global global) {
      return entry.what == What::kGlobal && static_cast<Global>(entry.index) == global;
    };
    if (!is(parts[0], Global::kRebuildTensorV2) && !is(parts[0], Global::kRebuildTensorV3))
      refuse_unsupported("a tensor that is rebuilt by another function than torch's own");
    if (!is(parts[1], Global::kTensorClass) && !is(parts[1], Global::kParameterClass))
      refuse_unsupported("a tensor of a class that is not torch's own");
    node(parts[2], PickleKind::kTuple);
    call(parts[0], parts[2].index);
  }

  std::vector<PickleNodeId> integers_of(Entry tuple) {
    charge(node(tuple, PickleKind::kTuple).items.size());
    std::vector<PickleNodeId> items = node(tuple, PickleKind::kTuple).items;
    for (const PickleNodeId id : items) (void)integer(entry_of(id));
    return items;
  }

  std::vector<std::int64_t> dimensions(Entry tuple) {
    const std::vector<PickleNodeId> items = integers_of(tuple);
    if (items.size() > kMaxDimensions)
      refuse_unsupported("a tensor of " + std::to_string(items.size()) + " dimensions");
    std::vector<std::int64_t> result;
    for (const PickleNodeId id : items) {
      result.push_back(tree_.nodes[id].integer);
      if (result.back() < 0) refuse_corrupt("a tensor with a negative size or stride");
    }
    return result;
  }

  void make_device(const std::vector<Entry>& parts) {
    std::string device = name_in(parts[0]);
    if (parts.size() == 2) device += ":" + std::to_string(integer(parts[1]));
    push_text(PickleKind::kDevice, device);
  }

  // encode("\u00ff", "latin1"): how protocol 2 writes bytes.
  void encode(const std::vector<Entry>& parts) {
    const std::string& text = node(parts[0], PickleKind::kString).text;
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
    push_text(PickleKind::kBytes, bytes);
  }

  // Attributes of an OrderedDict (_metadata of a state dict): checked like everything, and
  // dropped.
  void build() {
    (void)pop();
    if (top().what != What::kValue || tree_.nodes[top().index].kind != PickleKind::kDict)
      refuse_unsupported("it sets attributes of something that is not an OrderedDict");
  }

  // --- the end ---

  void stop() {
    const Entry entry = pop();
    if (!stack_.empty()) refuse_corrupt("values are left on its stack");
    if (entry.what != What::kValue) refuse_corrupt("it is a name, not a value");
    tree_.top = entry.index;
    extents_.assign(tree_.nodes.size(), {});
    check_tree(tree_.top, 0);
    has_stopped_ = true;
  }

  // Refuses what PickleTree guarantees not to have. Nodes that were met before are not walked
  // again.
  Extent check_tree(PickleNodeId id, std::size_t depth) {
    const PickleNode& it = tree_.nodes[id];
    if (it.kind == kName) refuse_corrupt("a name where a value is expected");
    Extent& its = extents_[id];
    if (its.size == kOpen) refuse_corrupt("a value contains itself");
    if (depth + its.height > kMaxPickleDepth)
      refuse_unsupported("it is nested deeper than " + std::to_string(kMaxPickleDepth));
    if (its.size != 0) return its;
    its.size = kOpen;
    Extent found{.size = 1};
    for (const PickleNodeId item : it.items) {
      const Extent under = check_tree(item, depth + 1);
      found.size += under.size;
      found.height = std::max(found.height, under.height + 1);
      expect_at_most(found.size);
    }
    if (it.kind == PickleKind::kDict || it.kind == PickleKind::kSet) check_keys(it);
    return its = found;
  }

  void check_keys(const PickleNode& container) {
    std::set<std::string> keys;
    const std::size_t step = container.kind == PickleKind::kDict ? 2 : 1;
    for (std::size_t i = 0; i < container.items.size(); i += step) {
      const PickleNodeId id = container.items[i];
      if (extents_[id].size > kMaxKeyNodes)
        refuse_unsupported("a key of more than " + std::to_string(kMaxKeyNodes) + " values");
      std::string key;
      spell_key(id, key);
      charge(key.size() / kBytesPerValue);
      if (!keys.insert(key).second) refuse_corrupt("key " + shown(key) + " is there twice");
    }
  }

  void spell_key(PickleNodeId id, std::string& text) const {
    const PickleNode& it = tree_.nodes[id];
    switch (it.kind) {
      case PickleKind::kNone: text += "None"; return;
      case PickleKind::kBool: text += it.integer != 0 ? "True" : "False"; return;
      case PickleKind::kInteger: text += std::to_string(it.integer); return;
      case PickleKind::kDouble:
        text += std::to_string(std::bit_cast<std::uint64_t>(it.real)) + "f";
        return;
      case PickleKind::kBigInteger:
      case PickleKind::kString:
      case PickleKind::kBytes:
      case PickleKind::kDtype:
      case PickleKind::kDevice:
        text += std::to_string(static_cast<int>(it.kind)) + "." + std::to_string(it.text.size()) +
                "'" + it.text + "'";
        return;
      case PickleKind::kTuple:
        text += "(";
        for (const PickleNodeId item : it.items) spell_key(item, text), text += ",";
        text += ")";
        return;
      default: break;
    }
    refuse_corrupt("a key is " + std::string(to_text(it.kind)));
  }

  // The kind of nodes that hold a name until a call takes it. A finished tree has none.
  static constexpr PickleKind kName = static_cast<PickleKind>(-1);
  static constexpr std::size_t kOpen = std::numeric_limits<std::size_t>::max();

  std::string_view all_;
  std::string_view left_;
  std::size_t most_;  // nodes
  std::size_t opcode_at_ = 0;
  PickleTree tree_;
  std::vector<Entry> stack_;
  std::unordered_map<std::uint64_t, Entry> memo_;
  std::vector<Storage> storages_;
  std::vector<Entry> names_;
  std::vector<Extent> extents_;
  std::size_t charged_ = 0;
  bool has_stopped_ = false;
};

}  // namespace

std::string_view to_text(PickleKind kind) {
  switch (kind) {
    case PickleKind::kNone: return "None";
    case PickleKind::kBool: return "a bool";
    case PickleKind::kInteger: return "an integer";
    case PickleKind::kBigInteger: return "an integer past 64 bits";
    case PickleKind::kDouble: return "a float";
    case PickleKind::kString: return "a text";
    case PickleKind::kBytes: return "bytes";
    case PickleKind::kList: return "a list";
    case PickleKind::kTuple: return "a tuple";
    case PickleKind::kSet: return "a set";
    case PickleKind::kDict: return "a dict";
    case PickleKind::kTensor: return "a tensor";
    case PickleKind::kDtype: return "a dtype";
    case PickleKind::kDevice: return "a device";
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

Result<PickleTree> unpickle(std::string_view pickle) { return Machine(pickle).run(); }

}  // namespace ddprun
