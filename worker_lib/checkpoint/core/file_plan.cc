#include "worker_lib/checkpoint/core/file_plan.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/parse_number.h"
#include "worker_lib/checkpoint/core/shards.h"
#include "worker_lib/serialization/core/archive_writer.h"
#include "worker_lib/serialization/core/unpickler.h"

namespace ddprun {
namespace {

// Adds the header of a record.
void add_header(ZipWriter& zip, const FilePlan::Record& record, bool is_first_of_part) {
  zip.add_header(record.name, record.bytes,
                 is_first_of_part ? FilePlan::kPartAlignment : ZipWriter::kRecordAlignment);
}

FilePlan::Record text_record(std::string_view name, std::string text) {
  const std::uint64_t bytes = text.size();
  return {.name = std::string(name), .bytes = bytes, .text = std::move(text), .is_storage = false};
}

// Sets the ranges of the parts.
void place(FilePlan& plan) {
  ZipWriter zip([](const void*, std::size_t) {});
  for (const FilePlan::Record& record : plan.records) {
    const bool is_first_of_part = record.rank != plan.last;
    add_header(zip, record, is_first_of_part);
    if (is_first_of_part) {
      plan.parts[plan.last].end = zip.at();
      plan.parts[record.rank].begin = zip.at();
      plan.last = record.rank;
    }
    zip.leave_out();
  }
  zip.finish();
  plan.parts[plan.last].end = zip.at();
}

}  // namespace

Result<FilePlan> plan_file(const std::vector<std::string>& pickles) {
  std::vector<StateArchive> shards;
  for (const std::string& pickle : pickles) {
    Result<PickleTree> tree = unpickle(pickle);
    if (!tree) return tree.error();
    shards.push_back({.tree = *std::move(tree), .records = {}, .prefix = {}});
  }
  const Result<StateArchive> merged = merge_shards(shards);
  if (!merged) return merged.error();
  Result<PickledTree> pickled = pickle_tree(merged->tree);
  if (!pickled) return pickled.error();

  FilePlan plan;
  plan.records = {text_record(kPickleRecord, std::move(pickled->pickle)),
                  text_record(kByteOrderRecord, std::string(kByteOrder)),
                  text_record(kVersionRecord, std::string(kArchiveVersion))};
  for (std::size_t i = 0; i < pickled->storages.size(); ++i) {
    const std::string_view key = pickled->storages[i].key;  // "SHARD/KEY"
    const std::size_t slash = key.find('/');
    const auto rank = parse_number<std::size_t>(key.substr(0, slash));
    const auto storage = parse_number<std::size_t>(key.substr(slash + 1));
    DDPRUN_ASSERT(rank && storage, "storages of shards have numbers");
    plan.records.push_back({.name = storage_record(i),
                            .bytes = static_cast<std::uint64_t>(pickled->storages[i].bytes),
                            .rank = *rank,
                            .storage = *storage});
  }
  std::ranges::stable_sort(plan.records, {}, &FilePlan::Record::rank);
  plan.parts.resize(pickles.size());
  place(plan);
  return plan;
}

PartWriter::PartWriter(const FilePlan& plan, std::size_t rank, WriteBytes write)
    : plan_(plan),
      rank_(rank),
      zip_([this, write = std::move(write)](const void* data, std::size_t bytes) {
        const FilePlan::Part& own = plan_.parts[rank_];
        if (zip_.at() >= own.begin && zip_.at() < own.end) write(data, bytes);
      }) {}

void PartWriter::write_records(
    const std::function<std::string_view(std::size_t storage)>& bytes_of) {
  std::size_t part = 0;
  for (const FilePlan::Record& record : plan_.records) {
    add_header(zip_, record, record.rank != std::exchange(part, record.rank));
    if (record.rank != rank_)
      zip_.leave_out();
    else
      zip_.add_bytes(record.is_storage ? bytes_of(record.storage) : record.text);
  }
}

void PartWriter::write_directory(const std::vector<std::uint32_t>& crcs) {
  DDPRUN_ASSERT(crcs.size() == plan_.records.size(), "each record has a CRC");
  for (std::size_t i = 0; i < plan_.records.size(); ++i)
    if (plan_.records[i].rank != rank_) zip_.set_crc(i, crcs[i]);
  zip_.finish();
}

}  // namespace ddprun
