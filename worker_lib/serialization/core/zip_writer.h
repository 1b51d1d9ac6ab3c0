// ZipWriter: writes a zip archive that torch.load reads. A record is stored uncompressed, at a
// multiple of 64 bytes (so that it can be mapped). Its size and CRC follow it, so that the writer
// reads the data only once.
//
//   ZipWriter zip(write);
//   zip.add("archive/data.pkl", bytes);
//   zip.finish();
//
// Pure; one owner thread.
//
// If several writers write one archive, each one goes through all records, and leaves out the bytes
// of the others' records. So all of them know where everything is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddprun {

// Receives a piece of a file. Must not throw.
using WriteBytes = std::function<void(const void* data, std::size_t bytes)>;

class ZipWriter {
 public:
  static constexpr std::size_t kRecordAlignment = 64;

  explicit ZipWriter(WriteBytes write) : write_(std::move(write)) {}

  // Writes a record. name: up to 65535 bytes, different from all other records' names. crc: of
  // the bytes, if it is known.
  void add(std::string name, std::string_view bytes, std::optional<std::uint32_t> crc = {}) {
    add_header(std::move(name), bytes.size());
    add_bytes(bytes, crc);
  }
  // Writes the bytes after the last record: the directory.
  void finish();

  // Adds the header, the first part of add(). The bytes begin at a multiple of `alignment`, which
  // is a multiple of kRecordAlignment, and up to 32 KiB.
  void add_header(std::string name, std::uint64_t bytes, std::size_t alignment = kRecordAlignment);
  // Adds the bytes, after the header.
  void add_bytes(std::string_view bytes, std::optional<std::uint32_t> crc = {});
  // Leaves the bytes out after the header, because another writer writes them and their CRC.
  void leave_out();

  // Returns the position of the next byte, or of the piece that is being received.
  std::uint64_t at() const { return at_; }
  // Returns the CRCs of the records; 0 if the bytes were left out.
  std::vector<std::uint32_t> crcs() const;
  // Sets the CRC of a record that was left out.
  void set_crc(std::size_t record, std::uint32_t crc) { records_[record].crc = crc; }

 private:
  struct Record {
    std::string name;
    std::uint64_t at = 0;  // where its header is
    std::uint64_t bytes = 0;
    std::uint32_t crc = 0;
  };

  void put(std::string_view bytes);

  const WriteBytes write_;
  std::vector<Record> records_;
  std::string text_;      // of the header or trailer that is written
  std::uint64_t at_ = 0;  // position of the next byte
};

}  // namespace ddprun
