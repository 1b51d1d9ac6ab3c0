#include "worker_lib/serialization/core/state_archive.h"

#include <algorithm>
#include <optional>

#include "base/concat.h"
#include "worker_lib/serialization/core/unpickler.h"

namespace ddprun {
namespace {

constexpr std::size_t kMagicBytes = 32;  // enough for is_older_format()

Error wrong(ErrorKind kind, std::string cause) {
  return {.kind = kind, .doing = "read it as a file of torch.save", .cause = std::move(cause)};
}

// Before PyTorch 1.6, files of torch.save began with a pickle of this number.
bool is_older_format(std::string_view file) {
  return file.starts_with(
      "\x80\x02\x8a\nl\xfc\x9c"
      "F\xf9 j\xa8P\x19.");
}

// Returns nullptr if the archive lacks the record.
const ZipRecord* find_record(const StateArchive& archive, const std::string& name) {
  const auto found = std::ranges::find(archive.records, name, &ZipRecord::name);
  return found == archive.records.end() ? nullptr : &*found;
}

}  // namespace

Result<StateArchive> read_state_archive(std::string_view file, RecordCrcs crcs,
                                        const ReadPart& read) {
  const auto start = read(file.substr(0, kMagicBytes));
  if (!start) return start.error();
  if (is_older_format(*start))
    return wrong(
        ErrorKind::kUnsupported,
        "it is in the format that PyTorch wrote before 1.6, which is not a zip archive; load it in "
        "Python and save it again");
  Result<std::vector<ZipRecord>> records = read_zip(file, read);
  if (!records) return records.error();
  StateArchive archive{.records = *std::move(records)};
  if (archive.records.empty())
    return wrong(ErrorKind::kCorrupt, "it is a zip archive without records");
  const std::string_view first = archive.records.front().name;
  archive.prefix = first.substr(0, first.find('/') + 1);
  if (crcs == RecordCrcs::kCheck)
    for (const ZipRecord& record : archive.records)
      if (!has_right_crc(record))
        return wrong(ErrorKind::kCorrupt, concat("the bytes of record '", record.name,
                                                 "' do not match its CRC: it is damaged"));
  const ZipRecord* const pickle = find_record(archive, archive.prefix + "data.pkl");
  if (!pickle)
    return wrong(ErrorKind::kCorrupt, "it has no record '" + archive.prefix + "data.pkl'");
  if (const ZipRecord* const found = find_record(archive, archive.prefix + "byteorder")) {
    const auto order = read(found->bytes.substr(0, kMagicBytes));
    if (!order) return order.error();
    if (*order != "little")
      return wrong(ErrorKind::kUnsupported,
                   *order == "big" ? "its tensors are big-endian" : "its byte order is not known");
  }
  const auto pickled = read(pickle->bytes);
  if (!pickled) return pickled.error();
  Result<PickleTree> tree = unpickle(*pickled);
  if (!tree) return tree.error();
  archive.tree = *std::move(tree);
  std::string name = archive.prefix + "data/";
  const std::size_t folder = name.size();
  std::optional<RecordIndex> index;  // if the records are in another order than the tensors
  auto next = std::ranges::find(archive.records, name + "0", &ZipRecord::name);
  for (PickleTensor& tensor : archive.tree.tensors) {
    name.resize(folder);
    name += tensor.storage.key;
    const ZipRecord* found = next != archive.records.end() && next->name == name ? &*next : nullptr;
    if (!found) {
      if (!index) {
        index.emplace(archive.records.size());
        for (const ZipRecord& record : archive.records) (void)index->add(record);
      }
      found = index->find(name);
    }
    if (!found) return wrong(ErrorKind::kCorrupt, "it has no record '" + name + "'");
    next = archive.records.begin() + (found - archive.records.data()) + 1;
    if (found->bytes.size() != static_cast<std::uint64_t>(tensor.storage.bytes))
      return wrong(ErrorKind::kCorrupt, concat("record '", name, "' has ", found->bytes.size(),
                                               " bytes, the pickle says ", tensor.storage.bytes));
    tensor.storage.contents = found->bytes;
    tensor.storage.record = static_cast<std::size_t>(found - archive.records.data());
  }
  return archive;
}

}  // namespace ddprun
