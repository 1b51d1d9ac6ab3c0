#include "worker_lib/checkpoint_tool/dcp.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/concat.h"
#include "worker_lib/serialization/core/little_endian.h"

namespace ddprun {
namespace {

class Leaves {
  using enum PickleKind;

 public:
  explicit Leaves(const PickleTree& tree) : tree_(tree) {}

  Result<std::vector<DcpLeaf>> run() {
    if (tree_[tree_.top].kind != kDict)
      refuse(concat("it is ", to_text(tree_[tree_.top].kind), ", but the layout has a dict"));
    else
      add(tree_.top);
    if (!refused_.empty())
      return Error{.kind = ErrorKind::kUnsupported,
                   .doing = "write it as a distributed checkpoint",
                   .cause = refused_};
    return std::move(leaves_);
  }

 private:
  void refuse(std::string why) {
    if (refused_.empty()) refused_ = std::move(why);
  }

  bool is_leaf(PickleNodeId id) const {
    const PickleNode& node = tree_[id];
    if (node.kind == kDict) return node.items.empty();
    if (node.kind != kList) return true;
    return std::ranges::all_of(node.items, [&](PickleNodeId item) {
      return tree_[item].kind != kTensor && is_leaf(item);
    });
  }

  // Without an empty dict in a list, the list would come back shorter.
  void add(PickleNodeId id) {
    const PickleNode& node = tree_[id];
    const bool is_in_list = !path_.empty() && path_.back().index() == 1;
    if (is_leaf(id) && (node.kind != kDict || is_in_list)) return add_leaf(id);
    if (node.kind == kDict) {
      for (const auto [key, value] : entries_of(node)) {
        const PickleNode& its_key = tree_[key];
        if (its_key.kind != kString && its_key.kind != kInteger)
          return refuse(concat("a key is ", to_text(its_key.kind)));
        path_.push_back(its_key.kind == kString ? its_key.text : std::to_string(its_key.integer));
        add(value);
        path_.pop_back();
      }
    } else {
      for (std::size_t i = 0; i < node.items.size(); ++i) {
        path_.push_back(static_cast<std::int64_t>(i));
        add(node.items[i]);
        path_.pop_back();
      }
    }
  }

  void add_leaf(PickleNodeId id) {
    DcpLeaf leaf{.path = path_, .value = id};
    for (const auto& part : path_)
      leaf.name += (leaf.name.empty() ? "" : ".") +
                   (part.index() == 0 ? std::get<0>(part) : std::to_string(std::get<1>(part)));
    if (tree_[id].kind == kTensor)
      leaf.tensor = &tree_.tensors[static_cast<std::size_t>(tree_[id].integer)];
    if (!names_.insert(leaf.name).second) refuse("two values have the name '" + leaf.name + "'");
    leaves_.push_back(std::move(leaf));
  }

  const PickleTree& tree_;
  decltype(DcpLeaf::path) path_;
  std::vector<DcpLeaf> leaves_;
  std::set<std::string> names_;
  std::string refused_;
};

// Writes a pickle of protocol 2. Texts and names that come again are taken from its memo.
class Pickle {
 public:
  void op(char opcode) { text_ += opcode; }
  void open() { op('('); }
  void none() { op('N'); }
  void no() { op('\x89'); }

  void string(std::string_view value) {
    remembered("s" + std::string(value), [&] {
      op('X');
      add_little_endian(text_, value.size(), 4);
      text_ += value;
    });
  }
  void integer(std::int64_t value) {
    text_ += "\x8a\x08";
    add_little_endian(text_, static_cast<std::uint64_t>(value), 8);
  }
  void global(const std::string& module, const std::string& name) {
    remembered("g" + module + "." + name, [&] { text_ += "c" + module + "\n" + name + "\n"; });
  }
  // Begins an object. Its fields follow: a name and a value each, then end_object().
  void begin_object(const std::string& module, const std::string& name) {
    global(module, name);
    text_ += ")\x81}(";
  }
  void end_object() { text_ += "ub"; }
  // torch.Size(numbers).
  void size(const std::vector<std::int64_t>& numbers) {
    global("torch", "Size");
    open();
    for (const std::int64_t number : numbers) integer(number);
    text_ += "t\x85R";
  }

  std::string take() { return "\x80\x02" + std::move(text_) + "."; }

 private:
  template <class Write>
  void remembered(const std::string& what, Write&& write) {
    const auto [place, is_new] = memo_.try_emplace(what, memo_.size());
    if (is_new) write();
    text_ += is_new ? 'r' : 'j';
    add_little_endian(text_, place->second, 4);
  }

  std::string text_;
  std::map<std::string, std::size_t> memo_;
};

const std::string kMetadata = "torch.distributed.checkpoint.metadata";
const std::string kFileSystem = "torch.distributed.checkpoint.filesystem";

void add_tensor(Pickle& pickle, const PickleTensor& tensor) {
  pickle.begin_object(kMetadata, "TensorStorageMetadata");
  pickle.string("properties");
  // TensorProperties has a state of its own: dtype, layout, requires_grad, memory format, pinned.
  pickle.global(kMetadata, "TensorProperties");
  pickle.op(')');
  pickle.op('\x81');
  pickle.open();
  pickle.global("torch", std::string(tensor.dtype.name));
  pickle.global("torch.serialization", "_get_layout");
  pickle.string("torch.strided");
  pickle.op('\x85');
  pickle.op('R');
  pickle.no();
  pickle.global(kMetadata, "_MEM_FORMAT_ENCODING");
  pickle.integer(0);
  pickle.op('\x85');
  pickle.op('R');
  pickle.no();
  pickle.op('t');
  pickle.op('b');
  pickle.string("size");
  pickle.size(tensor.sizes);
  pickle.string("chunks");
  pickle.op(']');
  pickle.begin_object(kMetadata, "ChunkStorageMetadata");
  pickle.string("offsets");
  pickle.size(std::vector<std::int64_t>(tensor.sizes.size()));
  pickle.string("sizes");
  pickle.size(tensor.sizes);
  pickle.end_object();
  pickle.op('a');
  pickle.end_object();
}

void add_place(Pickle& pickle, const DcpItem& item) {
  pickle.begin_object(kMetadata, "MetadataIndex");
  pickle.string("fqn");
  pickle.string(item.leaf->name);
  pickle.string("index");
  if (item.leaf->tensor) {
    pickle.integer(0);
    pickle.string("offset");
    pickle.size(std::vector<std::int64_t>(item.leaf->tensor->sizes.size()));
  } else {
    pickle.none();
  }
  pickle.end_object();
  pickle.begin_object(kFileSystem, "_StorageInfo");
  pickle.string("relative_path");
  pickle.string(kDcpDataName);
  pickle.string("offset");
  pickle.integer(static_cast<std::int64_t>(item.at));
  pickle.string("length");
  pickle.integer(static_cast<std::int64_t>(item.bytes));
  pickle.end_object();
}

}  // namespace

Result<std::vector<DcpLeaf>> dcp_leaves(const PickleTree& tree) { return Leaves(tree).run(); }

std::string dcp_metadata(const std::vector<DcpItem>& items) {
  Pickle pickle;
  const auto dict = [&](const char* field, auto&& add) {
    pickle.string(field);
    pickle.op('}');
    pickle.open();
    for (const DcpItem& item : items) add(item);
    pickle.op('u');
  };
  pickle.begin_object(kMetadata, "Metadata");
  dict("state_dict_metadata", [&](const DcpItem& item) {
    pickle.string(item.leaf->name);
    if (item.leaf->tensor) return add_tensor(pickle, *item.leaf->tensor);
    pickle.global(kMetadata, "BytesStorageMetadata");
    pickle.op(')');
    pickle.op('\x81');
  });
  dict("planner_data", [&](const DcpItem& item) {
    pickle.string(item.leaf->name);
    pickle.open();
    for (const auto& part : item.leaf->path)
      if (part.index() == 0)
        pickle.string(std::get<0>(part));
      else
        pickle.integer(std::get<1>(part));
    pickle.op('t');
  });
  dict("storage_data", [&](const DcpItem& item) { add_place(pickle, item); });
  pickle.end_object();
  return pickle.take();
}

}  // namespace ddprun
