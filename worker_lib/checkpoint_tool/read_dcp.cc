#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <functional>
#include <map>
#include <utility>

#include "base/concat.h"
#include "base/read_whole.h"
#include "base/regular_file.h"
#include "worker_lib/checkpoint/file_outline.h"
#include "worker_lib/checkpoint_tool/dcp.h"
#include "worker_lib/checkpoint_tool/file_copy.h"
#include "worker_lib/checkpoint_tool/report.h"
#include "worker_lib/checkpoint_tool/weights.h"
#include "worker_lib/serialization/core/unpickler.h"

namespace ddprun {
namespace {

constexpr std::uint64_t kMostMetadataBytes = std::uint64_t{1} << 30;
constexpr std::size_t kMostRuns = std::size_t{1} << 22;       // of one tensor
constexpr std::size_t kMostRunsOfAll = std::size_t{1} << 26;  // 3 GB of memory

using Numbers = std::vector<std::int64_t>;

// The place of a part of a tensor.
struct Place {
  std::string file;
  std::uint64_t at = 0, bytes = 0;
};

class DcpReader {
  using enum PickleKind;

 public:
  explicit DcpReader(const std::string& directory)
      : directory_(directory), metadata_(directory + "/" + kDcpMetadataName) {}

  Weights run() {
    const Result<UniqueFd> fd = open_regular_file(metadata_);
    if (!fd) refuse_files(fd.error().message());
    const auto pickle = read_whole<std::string>(fd->get(), metadata_, kMostMetadataBytes);
    if (!pickle) refuse_files(pickle.error().message());
    Result<PickleTree> tree = unpickle(*pickle, PickleNames::kDcp);
    if (!tree) refuse_damaged(metadata_, tree.error());
    tree_ = *std::move(tree);
    read_places();
    const PickleNode& values = dict_in(tree_[tree_.top], "state_dict_metadata");
    const std::map<std::string, std::string> in_model = names_in_model();
    for (const auto [key, value] : entries_of(values)) {
      const std::string name = text(tree_[key]);
      const auto found = in_model.find(name);
      if (!tree_.find(tree_[value], "chunks") || (!in_model.empty() && found == in_model.end()))
        result_.left_out.push_back(name);
      else
        add(name, found == in_model.end() ? name : found->second, tree_[value]);
    }
    return std::move(result_);
  }

 private:
  // --- the metadata ---

  [[noreturn]] void refuse(const std::string& why) const { refuse_damaged(metadata_, why); }
  void expect(bool is_right, const char* what) const {
    if (!is_right) refuse(concat("it is not what PyTorch writes: ", what));
  }
  const PickleNode& in(const PickleNode& dict, const char* key) const {
    const PickleNode* const found = tree_.find(dict, key);
    expect(found, key);
    return *found;
  }
  const PickleNode& dict_in(const PickleNode& dict, const char* key) const {
    const PickleNode& found = in(dict, key);
    expect(found.kind == kDict, key);
    return found;
  }
  const std::string& text(const PickleNode& node) const {
    expect(node.kind == kString, "a text is expected");
    return node.text;
  }
  std::int64_t count(const PickleNode& node) const {
    expect(node.kind == kInteger && node.integer >= 0, "a number is expected");
    return node.integer;
  }
  Numbers numbers(const PickleNode& node) const {
    expect(node.kind == kTuple, "a size is expected");
    Numbers result;
    for (const PickleNodeId item : node.items) result.push_back(count(tree_[item]));
    return result;
  }

  void read_places() {
    for (const auto [key, value] : entries_of(dict_in(tree_[tree_.top], "storage_data"))) {
      const PickleNode* const offset = tree_.find(tree_[key], "offset");
      if (!offset || offset->kind != kTuple) continue;  // not a tensor
      const PickleNode& info = tree_[value];
      if (const PickleNode* const more = tree_.find(info, "transform_descriptors");
          more && more->kind != kNone && !more->items.empty())
        refuse("its data is compressed, which is not supported");
      Place place{.file = text(in(info, "relative_path")),
                  .at = static_cast<std::uint64_t>(count(in(info, "offset"))),
                  .bytes = static_cast<std::uint64_t>(count(in(info, "length")))};
      expect(place.file.find('/') == std::string::npos, "a file is not in the directory");
      places_[{text(in(tree_[key], "fqn")), numbers(*offset)}] = std::move(place);
    }
  }

  // Returns the names of the tensors under "model", by their names in the layout.
  std::map<std::string, std::string> names_in_model() const {
    std::map<std::string, std::string> result;
    const PickleNode* const planner = tree_.find(tree_[tree_.top], "planner_data");
    if (!planner) return result;
    for (const auto [key, value] : entries_of(*planner)) {
      const PickleNode& path = tree_[value];
      if (path.kind != kTuple || path.items.size() < 2) continue;
      const PickleNode& first = tree_[path.items[0]];
      if (first.kind != kString || first.text != "model") continue;
      std::string name;
      for (std::size_t i = 1; i < path.items.size(); ++i) {
        const PickleNode& part = tree_[path.items[i]];
        name += (i > 1 ? "." : "") +
                (part.kind == kInteger ? std::to_string(part.integer) : text(part));
      }
      result[text(tree_[key])] = name;
    }
    return result;
  }

  // --- the data ---

  std::size_t file_of(const std::string& name) {
    const auto [found, is_new] = files_.try_emplace(name, result_.paths.size());
    if (is_new) result_.paths.push_back(directory_ + "/" + name);
    return found->second;
  }

  void add(const std::string& name, const std::string& name_in_model, const PickleNode& metadata) {
    const Numbers size = numbers(in(metadata, "size"));
    const PickleNode& chunks = in(metadata, "chunks");
    expect(chunks.kind == kList && !chunks.items.empty(), "a tensor has no parts");
    Weight weight{.name = name_in_model};
    std::map<std::uint64_t, Run> runs;  // by their place in the tensor, in bytes
    for (const PickleNodeId id : chunks.items) {
      const Numbers offsets = numbers(in(tree_[id], "offsets"));
      const auto place = places_.find({name, offsets});
      expect(place != places_.end(), "a part of a tensor has no place");
      const std::string& path = result_.paths[file_of(place->second.file)];
      const Result<FileOutline> outline =
          FileOutline::read_within(path, place->second.at, place->second.bytes);
      if (!outline) refuse_damaged(path, outline.error());
      const StateArchive& archive = outline->archive();
      const PickleNode& top = archive.tree[archive.tree.top];
      expect(top.kind == kTensor, "a part of a tensor is something else");
      const PickleTensor& part = archive.tree.tensors[static_cast<std::size_t>(top.integer)];
      expect(part.sizes == numbers(in(tree_[id], "sizes")) && part.sizes.size() == size.size() &&
                 offsets.size() == size.size(),
             "a part of a tensor has another size");
      for (std::size_t i = 0; i < size.size(); ++i)
        expect(offsets[i] <= size[i] && part.sizes[i] <= size[i] - offsets[i],
               "a part is not within its tensor");
      const std::string_view bytes = reach_of(part, part.storage.contents);
      Run whole{.file = files_.at(place->second.file),
                .at = place->second.at + (bytes.empty() ? 0 : outline->position_of(bytes)),
                .bytes = bytes.size()};
      // A run has a CRC only if it is a whole record. The record of smaller ones is checked first.
      const auto record = std::ranges::find_if(archive.records, [&](const ZipRecord& one) {
        return !std::less<>()(bytes.data(), one.bytes.data()) &&
               std::less<>()(bytes.data(), one.bytes.data() + one.bytes.size());
      });
      if (record != archive.records.end() && record->bytes.size() == bytes.size())
        whole.crc = record->crc;
      else if (record != archive.records.end())
        weight.records.push_back({.file = whole.file,
                                  .at = place->second.at + outline->position_of(record->bytes),
                                  .bytes = record->bytes.size(),
                                  .crc = record->crc});
      if (chunks.items.size() == 1 && part.sizes == size) {
        weight.tensor = part;
        weight.tensor.offset = 0;
        weight.tensor.storage = {.bytes = static_cast<std::int64_t>(bytes.size())};
        weight.runs = {whole};
        result_.weights.push_back(std::move(weight));
        return;
      }
      if (strided_bytes(part) > 0)
        refuse("a part of the tensor '" + name + "' is not contiguous, which is not supported");
      expect(runs.empty() || weight.tensor.dtype == part.dtype,
             "the parts of a tensor have different dtypes");
      weight.tensor.dtype = part.dtype;
      const bool is_one_run = add_rows(size, offsets, part, whole, runs);
      if (whole.crc && !is_one_run) weight.records.push_back(whole);
    }
    finish(name, size, runs, weight);
    result_.weights.push_back(std::move(weight));
  }

  // Adds the bytes of a part to the runs of its tensor. A run goes as far as the elements are in
  // order in both. Returns whether the part is one run.
  bool add_rows(const Numbers& size, const Numbers& offsets, const PickleTensor& part,
                const Run& whole, std::map<std::uint64_t, Run>& runs) {
    if (whole.bytes == 0) return true;
    Numbers strides(size.size());
    std::int64_t stride = part.dtype.bytes;
    for (std::size_t i = size.size(); i > 0; --i) {
      strides[i - 1] = stride;
      expect(!__builtin_mul_overflow(stride, size[i - 1], &stride), "a tensor is too large");
    }
    std::size_t first = size.size();  // dimensions from here on are in one run
    std::uint64_t row = static_cast<std::uint64_t>(part.dtype.bytes);
    while (first > 0) {
      row *= static_cast<std::uint64_t>(part.sizes[--first]);
      if (part.sizes[first] != size[first]) break;
    }
    Numbers index(first);
    for (Run run{.file = whole.file, .at = whole.at, .bytes = row}; run.at < whole.at + whole.bytes;
         run.at += row) {
      std::int64_t to = 0;
      for (std::size_t i = 0; i < size.size(); ++i)
        to += (offsets[i] + (i < first ? index[i] : 0)) * strides[i];
      run.crc = row == whole.bytes ? whole.crc : std::nullopt;
      runs[static_cast<std::uint64_t>(to)] = run;
      if (runs.size() > kMostRuns) refuse("a tensor has too many small parts");
      if (++runs_ > kMostRunsOfAll) refuse("its tensors have too many small parts together");
      for (std::size_t i = first; i > 0; --i) {
        if (++index[i - 1] < part.sizes[i - 1]) break;
        index[i - 1] = 0;
      }
    }
    return row == whole.bytes;
  }

  // Checks that the runs are the whole tensor.
  void finish(const std::string& name, const Numbers& size, std::map<std::uint64_t, Run>& runs,
              Weight& weight) const {
    PickleTensor& tensor = weight.tensor;
    tensor.sizes = size;
    tensor.strides.resize(size.size());
    std::int64_t elements = 1, bytes = tensor.dtype.bytes;
    for (std::size_t i = size.size(); i > 0; --i) {
      tensor.strides[i - 1] = elements;
      expect(!__builtin_mul_overflow(elements, std::max<std::int64_t>(size[i - 1], 1), &elements) &&
                 !__builtin_mul_overflow(bytes, size[i - 1], &bytes),
             "a tensor is too large");
    }
    std::uint64_t at = 0;
    for (const auto& [to, run] : runs) {
      if (to != at) refuse("the parts of the tensor '" + name + "' overlap, or one is missing");
      at += run.bytes;
      weight.runs.push_back(run);
    }
    if (at != static_cast<std::uint64_t>(bytes))
      refuse("the parts of the tensor '" + name + "' overlap, or one is missing");
    tensor.storage.bytes = bytes;
  }

  const std::string directory_;
  const std::string metadata_;
  PickleTree tree_;
  std::map<std::pair<std::string, Numbers>, Place> places_;
  std::map<std::string, std::size_t> files_;
  std::size_t runs_ = 0;  // of all tensors
  Weights result_;
};

}  // namespace

Weights read_dcp(const std::string& path) { return DcpReader(path).run(); }

}  // namespace ddprun
