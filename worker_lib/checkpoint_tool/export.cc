#include "worker_lib/checkpoint_tool/export.h"

#include <fcntl.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <set>
#include <utility>
#include <vector>

#include "base/concat.h"
#include "base/durable_directory.h"
#include "base/file_calls.h"
#include "base/random_id.h"
#include "base/write_all.h"
#include "worker_lib/checkpoint_tool/dcp.h"
#include "worker_lib/checkpoint_tool/file_copy.h"
#include "worker_lib/checkpoint_tool/report.h"
#include "worker_lib/checkpoint_tool/safetensors.h"
#include "worker_lib/serialization/core/archive_writer.h"
#include "worker_lib/serialization/core/temporary_name.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;

// A file or a directory under its temporary name. It is removed unless it was committed.
class PendingOutput {
 public:
  explicit PendingOutput(const std::string& path)
      : path_(path), temporary_(temporary_name(path, random_hex(6))) {
    if (fs::exists(fs::symlink_status(path)))
      refuse_files(path + " already exists; give another name");
  }
  ~PendingOutput() {
    std::error_code ignored;
    if (!is_committed_) fs::remove_all(temporary_, ignored);
  }
  PendingOutput(const PendingOutput&) = delete;
  PendingOutput& operator=(const PendingOutput&) = delete;

  const std::string& temporary() const { return temporary_; }

  void commit() {
    if (file_calls().rename(temporary_.c_str(), path_.c_str()) != 0)
      refuse_files(system_error("write " + path_, errno).message());
    is_committed_ = true;
    if (const auto done = flush_directory(fs::absolute(path_).parent_path()); !done)
      refuse_files(done.error().message());
  }

 private:
  const std::string path_;
  const std::string temporary_;
  bool is_committed_ = false;
};

// --- torch.save ---

// Puts the archive of a tree whose storages are views of the checkpoint.
void put_archive(FileCopy& file, const PickleTree& tree, const std::string& name) {
  const Result<void> done = write_state_archive(
      tree, [&](const PickleStorage& storage) { return file.crc_of(storage.contents); },
      [&](const void* data, std::size_t bytes) {
        file.put({static_cast<const char*>(data), bytes});
      });
  if (!done) refuse_files(concat(name, ": ", done.error().message()));
}

void export_torch(const Opened& opened, const std::string& path) {
  if (!opened.directory) refuse_files(opened.name + " is a file of torch.save: copy it");
  FileCopy(opened, [&](FileCopy& file) {
    if (opened.outlines.size() == 1 && !is_sharded(opened.manifest))
      file.put({opened.outlines[0].begin(), static_cast<std::size_t>(opened.bytes)});
    else
      put_archive(file, opened.archive.tree, opened.name);
  }).write(path);
}

// --- safetensors ---

// Returns a key as text.
std::string text_of_key(const PickleNode& key, const std::string& where) {
  if (key.kind == PickleKind::kString) return key.text;
  if (key.kind == PickleKind::kInteger) return std::to_string(key.integer);
  refuse_files(concat(where, ": a key is ", to_text(key.kind), ", which this format cannot have"));
}

// Collects the tensors below a value by their names, "layer.weight". left_out: other values.
class NamedTensors {
 public:
  explicit NamedTensors(const Opened& opened) : opened_(opened) {}

  void add(PickleNodeId id, const std::string& name) {
    const PickleTree& tree = opened_.archive.tree;
    const PickleNode& node = tree[id];
    const auto under = [&](const std::string& key) {
      return name.empty() ? key : name + "." + key;
    };
    if (node.kind == PickleKind::kDict) {
      for (const auto [key, value] : entries_of(node))
        add(value, under(text_of_key(tree[key], opened_.name)));
    } else if (node.kind == PickleKind::kList || node.kind == PickleKind::kTuple) {
      for (std::size_t i = 0; i < node.items.size(); ++i)
        add(node.items[i], under(std::to_string(i)));
    } else if (node.kind == PickleKind::kTensor) {
      if (!names_.insert(name).second)
        refuse_files(concat(opened_.name, ": two tensors have the name '", name, "'"));
      tensors.emplace_back(name, &tree.tensors[static_cast<std::size_t>(node.integer)]);
    } else {
      left_out.push_back(name);
    }
  }

  std::vector<std::pair<std::string, const PickleTensor*>> tensors;
  std::vector<std::string> left_out;

 private:
  const Opened& opened_;
  std::set<std::string> names_;
};

bool has_tensors(const PickleTree& tree, PickleNodeId id) {
  return tree[id].kind == PickleKind::kTensor ||
         std::ranges::any_of(tree[id].items,
                             [&](PickleNodeId item) { return has_tensors(tree, item); });
}

// Returns the tensors of the entries `model` and `models`. If neither has any: all tensors.
NamedTensors weights_of(const Opened& opened) {
  NamedTensors result(opened);
  const PickleTree& tree = opened.archive.tree;
  const PickleNode& top = tree[tree.top];
  const auto is_of_model = [&](const PickleEntry& entry) {
    const std::string& name = tree[entry.key].text;
    return (name == "model" || name == "models") && has_tensors(tree, entry.value);
  };
  if (top.kind != PickleKind::kDict || std::ranges::none_of(entries_of(top), is_of_model)) {
    result.add(tree.top, "");
    return result;
  }
  for (const PickleEntry& entry : entries_of(top))
    if (is_of_model(entry))
      result.add(entry.value, "");
    else
      result.left_out.push_back(text_of_key(tree[entry.key], opened.name));
  return result;
}

void export_safetensors(const Opened& opened, const std::string& path) {
  NamedTensors weights = weights_of(opened);
  for (const auto& [name, tensor] : weights.tensors) {
    if (safetensors_dtype(tensor->dtype.name).empty())
      refuse_files(concat(opened.name, ": the tensor '", name, "' has the dtype ",
                          tensor->dtype.name, ", which safetensors does not have"));
    if (strided_bytes(*tensor) > kMostStridedBytes)
      refuse_files(concat(opened.name, ": the tensor '", name, "' is not contiguous and spans ",
                          size_text(strided_bytes(*tensor)), " (at most ",
                          size_text(kMostStridedBytes), "): export it with --torch or --dcp"));
  }
  // A reader maps the file, and needs each element at a multiple of its size.
  std::ranges::stable_sort(weights.tensors, std::greater<>(),
                           [](const auto& one) { return one.second->dtype.bytes; });
  std::vector<SafetensorsEntry> entries;
  std::uint64_t at = 0;
  for (const auto& [name, tensor] : weights.tensors) {
    entries.push_back({.name = name,
                       .dtype = tensor->dtype.name,
                       .sizes = tensor->sizes,
                       .begin = at,
                       .end = at + bytes_of(*tensor)});
    at = entries.back().end;
  }
  const std::string header = safetensors_header(
      entries, opened.directory ? std::optional(opened.manifest.step) : std::nullopt);
  FileCopy(opened, [&](FileCopy& file) {
    file.put(header);
    for (const auto& [name, tensor] : weights.tensors)
      file.put_elements(*tensor, tensor->storage.contents);
  }).write(path);
  print_left_out(weights.left_out);
}

// --- PyTorch's distributed checkpoint ---

void export_dcp(const Opened& opened, const std::string& path) {
  if (file_calls().mkdir(path.c_str(), 0777) != 0)
    refuse_files(system_error("make the directory " + path, errno).message());
  const std::vector<DcpLeaf> leaves = [&] {
    Result<std::vector<DcpLeaf>> found = dcp_leaves(opened.archive.tree);
    if (!found) refuse_files(concat(opened.name, ": ", found.error().message()));
    return *std::move(found);
  }();
  std::vector<DcpItem> items;
  FileCopy(opened, [&](FileCopy& file) {
    items.clear();
    PickleTree of_value = opened.archive.tree;  // one value after the other
    for (const DcpLeaf& leaf : leaves) {
      const std::uint64_t at = file.position();
      if (leaf.tensor) {
        // A file of its own, with no more than its part of the storage.
        PickleTree of_tensor;
        PickleTensor tensor = *leaf.tensor;
        tensor.storage.contents = reach_of(tensor, tensor.storage.contents);
        tensor.storage.bytes = static_cast<std::int64_t>(tensor.storage.contents.size());
        tensor.offset = 0;
        tensor.requires_grad = false;
        of_tensor.tensors.push_back(std::move(tensor));
        of_tensor.nodes.push_back({.kind = PickleKind::kTensor});
        put_archive(file, of_tensor, opened.name);
      } else {
        of_value.top = leaf.value;
        put_archive(file, of_value, opened.name);
      }
      items.push_back({.leaf = &leaf, .at = at, .bytes = file.position() - at});
    }
  }).write(path + "/" + kDcpDataName);
  const std::string metadata = dcp_metadata(items);
  const std::string name = path + "/" + kDcpMetadataName;
  FileCalls& calls = file_calls();
  UniqueFd fd(calls.open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  const auto write = [&](int to, const void* data, std::size_t bytes) {
    return calls.write(to, data, bytes);
  };
  if (!fd.valid() || !write_all(fd.get(), metadata, write) || calls.fsync(fd.get()) != 0)
    refuse_files(system_error("write " + name, errno).message());
  if (const auto done = flush_directory(path); !done) refuse_files(done.error().message());
}

}  // namespace

void export_to(ExportFormat format, const Opened& opened, const std::string& output) {
  PendingOutput pending(output);
  switch (format) {
    case ExportFormat::kTorch: export_torch(opened, pending.temporary()); break;
    case ExportFormat::kSafetensors: export_safetensors(opened, pending.temporary()); break;
    case ExportFormat::kDcp: export_dcp(opened, pending.temporary()); break;
  }
  pending.commit();
  std::uint64_t bytes = 0;
  if (format == ExportFormat::kDcp)
    for (const auto& file : fs::directory_iterator(output)) bytes += file.file_size();
  else
    bytes = fs::file_size(output);
  print(output, ": ", opened.directory ? concat("step ", opened.manifest.step, ", ") : "",
        size_text(bytes));
}

}  // namespace ddprun
