#include "worker_lib/checkpoint_tool/import.h"

#include <sys/mman.h>

#include <cerrno>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "base/concat.h"
#include "base/durable_directory.h"
#include "base/mapped_memory.h"
#include "base/regular_file.h"
#include "base/unique_fd.h"
#include "worker_lib/checkpoint/io.h"
#include "worker_lib/checkpoint_tool/opened.h"
#include "worker_lib/checkpoint_tool/report.h"
#include "worker_lib/serialization/core/archive_writer.h"
#include "worker_lib/serialization/core/crc32.h"

namespace ddprun {
namespace {

using enum PickleKind;

constexpr std::size_t kMostOpenFiles = 64;

// Addresses without memory, which stand for the bytes of all weights.
class Addresses {
 public:
  explicit Addresses(std::size_t bytes) {
    if (bytes == 0) return;
    void* const address =
        ::mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED)
      refuse_files(
          system_error(concat("reserve ", bytes, " bytes of address space"), errno).message());
    memory_ = MappedMemory<char>(static_cast<char*>(address), Unmap{bytes});
  }
  const char* begin() const { return memory_.get(); }

 private:
  MappedMemory<char> memory_{nullptr, Unmap{}};
};

void read_runs(const Weights& weights, const Weight& weight, const std::vector<Run>& runs,
               const std::function<void(std::string_view)>& use) {
  std::map<std::size_t, UniqueFd> open;  // neighbouring rows may come from several files
  for (const Run& run : runs) {
    const std::string& path = weights.paths[run.file];
    if (open.size() >= kMostOpenFiles && !open.contains(run.file)) open.clear();
    UniqueFd& fd = open[run.file];
    if (!fd.valid()) {
      Result<UniqueFd> opened = open_regular_file(path);
      if (!opened) refuse_files(opened.error().message());
      fd = *std::move(opened);
    }
    std::uint32_t crc = 0;
    read_pieces(fd.get(), path, run.at, run.bytes, [&](std::string_view piece) {
      if (run.crc) crc = crc32(piece, crc);
      use(piece);
    });
    if (run.crc && crc != *run.crc)
      refuse_damaged(weights.paths[run.file],
                     concat("the bytes of the tensor '", weight.name, "' do not match their CRC"));
  }
}

// Makes the contents of a checkpoint that has only a model.
class Contents {
 public:
  Contents(const Weights& weights, const std::string& from, std::int64_t step) {
    PickleNode model{.kind = kDict};
    for (std::size_t i = 0; i < weights.weights.size(); ++i) {
      PickleTensor tensor = weights.weights[i].tensor;
      tensor.storage.key = std::to_string(i);
      tensor.storage.record = i;
      tensor.requires_grad = false;
      tree.tensors.push_back(std::move(tensor));
      model.items.push_back(add({.kind = kString, .text = weights.weights[i].name}));
      model.items.push_back(add({.kind = kTensor, .integer = static_cast<std::int64_t>(i)}));
    }
    PickleNode top{.kind = kDict};
    const auto entry = [&](const char* key, PickleNode value) {
      top.items.push_back(add({.kind = kString, .text = key}));
      top.items.push_back(add(std::move(value)));
    };
    entry("model", std::move(model));
    entry("epoch", {.kind = kInteger});
    entry("step", {.kind = kInteger, .integer = step});
    entry("rng", {.kind = kList});
    entry("extra", {.kind = kNone});
    entry("world_size", {.kind = kInteger, .integer = 1});
    entry("generation", {.kind = kInteger});
    entry("data", {.kind = kString});
    entry("imported", {.kind = kString, .text = from});
    tree.top = add(std::move(top));
  }

  PickleTree tree;

 private:
  PickleNodeId add(PickleNode node) {
    tree.nodes.push_back(std::move(node));
    return static_cast<PickleNodeId>(tree.nodes.size() - 1);
  }
};

void expect_unused(const CheckpointDirectory& directory) {
  const Result<std::vector<std::int64_t>> steps = directory.steps();
  if (!steps) refuse_files(steps.error().message());
  if (!steps->empty() || std::filesystem::exists(directory.path_of(".claim.json")))
    refuse_files(directory.path() + " belongs to a training: give a new directory to --into");
}

}  // namespace

// The bytes are read twice: an archive has the CRC of a record that is not in memory before it.
void import_into(const std::string& directory, std::int64_t step, const Weights& weights,
                 const std::string& from) {
  CheckpointDirectory target(directory);
  expect_unused(target);
  if (weights.weights.empty()) refuse_files(from + " has no tensor that can be imported");
  std::size_t all = 0;
  std::set<std::string_view> names;
  for (const Weight& weight : weights.weights)
    if (!names.insert(weight.name).second)
      refuse_files(concat(from, ": two tensors have the name '", weight.name, "'"));
  for (const Weight& weight : weights.weights)
    if (__builtin_add_overflow(all, static_cast<std::size_t>(weight.tensor.storage.bytes), &all))
      refuse_files(from + " has more bytes than a file can have");
  Contents contents(weights, from, step);
  const Addresses addresses(all);
  std::map<const char*, std::size_t> weight_at;
  std::vector<std::uint32_t> crcs(weights.weights.size());
  std::size_t at = 0;
  for (std::size_t i = 0; i < weights.weights.size(); ++i) {
    const Weight& weight = weights.weights[i];
    const auto bytes = static_cast<std::size_t>(weight.tensor.storage.bytes);
    const std::string_view view(bytes == 0 ? "" : addresses.begin() + at, bytes);
    if (bytes > 0) weight_at[view.data()] = i;
    at += bytes;
    contents.tree.tensors[i].storage.contents = view;
    std::uint32_t& crc = crcs[i];
    read_runs(weights, weight, weight.records, [](std::string_view) {});
    read_runs(weights, weight, weight.runs,
              [&](std::string_view piece) { crc = crc32(piece, crc); });
  }
  if (const Result<void> made = make_durable_directory(directory); !made)
    refuse_files(made.error().message());
  std::optional<Failed> failed;
  const auto write = [&](AtomicFile& file) {
    const auto put = [&](const void* data, std::size_t bytes) {
      const auto weight = weight_at.find(static_cast<const char*>(data));
      if (weight == weight_at.end()) return file.write(data, bytes);
      if (!failed) try {
          std::uint32_t crc = 0;
          const Weight& from_there = weights.weights[weight->second];
          read_runs(weights, from_there, from_there.runs, [&](std::string_view piece) {
            crc = crc32(piece, crc);
            file.write(piece.data(), piece.size());
          });
          if (crc != crcs[weight->second]) refuse_files(from + " has changed");
        } catch (const Failed& thrown) {
          failed = thrown;
        }
    };
    const Result<void> done = write_state_archive(
        contents.tree, [&](const PickleStorage& storage) { return crcs[storage.record]; }, put);
    if (!done) failed = Failed{ExitCode::kFiles, concat(from, ": ", done.error().message())};
    if (failed) throw *failed;  // leaves no file
  };
  const Result<AnnouncedCheckpoint> announced = target.announce({.step = step}, write);
  if (!announced) refuse_files(announced.error().message());
  print(directory, ": step ", step, ", ", weights.weights.size(), " tensors of a model, ",
        size_text(announced->manifest.files[0].bytes),
        "; without optimizer, random generators and position in the data");
}

}  // namespace ddprun
