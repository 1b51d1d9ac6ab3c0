// FilePlan: where everything is in one data file that all ranks write together, each its part.
//
//   | data.pkl, byteorder, version, rank 0's storages | rank 1's storages | ... | the directory |
//
// A part is a range of the file. Except for the first one, it begins with the bytes of a record, at
// a multiple of kPartAlignment. The header of this record belongs to the part before. So no page is
// written by two ranks, and a SHA-256 can be continued from part to part. The last part ends with
// the directory.
//
// Every rank makes the same plan from the pickles of all shards (core/shards.h). The file has the
// contents of the merged shards. Pure; any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "worker_lib/serialization/core/zip_writer.h"

namespace ddprun {

struct FilePlan {
  static constexpr std::size_t kPartAlignment = 4096;

  struct Record {
    std::string name;
    std::uint64_t bytes = 0;
    std::size_t rank = 0;
    std::size_t storage = 0;  // the number in the rank's shard
    std::string text = {};    // its contents, if it is not a storage
    bool is_storage = true;
  };
  struct Part {
    std::uint64_t begin = 0;
    std::uint64_t end = 0;

    std::uint64_t bytes() const { return end - begin; }
  };

  std::vector<Record> records;  // in the order of the file
  std::vector<Part> parts;      // by rank; a rank without storages may have none
  std::size_t last = 0;         // the rank of the last part

  std::uint64_t bytes() const { return parts[last].end; }
};

// pickles: of the shards, by rank. The keys of their storages are numbers from 0. Fails as
// unpickle(), merge_shards() and pickle_tree().
Result<FilePlan> plan_file(const std::vector<std::string>& pickles);

// PartWriter: passes the bytes of a rank's part on, in order.
class PartWriter {
 public:
  // plan: must outlive this.
  PartWriter(const FilePlan& plan, std::size_t rank, WriteBytes write);
  PartWriter(const PartWriter&) = delete;
  PartWriter& operator=(const PartWriter&) = delete;

  // Passes the records on. bytes_of: returns the bytes of a storage of this rank.
  void write_records(const std::function<std::string_view(std::size_t storage)>& bytes_of);
  // Returns the CRCs of all records; those of other ranks are 0.
  std::vector<std::uint32_t> crcs() const { return zip_.crcs(); }
  // Passes the directory on, after the records and only in the last part. crcs: of all records.
  void write_directory(const std::vector<std::uint32_t>& crcs);

 private:
  const FilePlan& plan_;
  const std::size_t rank_;
  ZipWriter zip_;
};

}  // namespace ddprun
