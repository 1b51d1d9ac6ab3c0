// ZipWriter: writes a zip archive that torch.load reads. A record is stored uncompressed, at a
// multiple of 64 bytes (so that it can be mapped). Its size and CRC follow it, so that the writer
// reads the data only once.
//
//   ZipWriter zip(write);
//   zip.add("archive/data.pkl", bytes);
//   zip.finish();
//
// Pure; one owner thread.
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
  explicit ZipWriter(WriteBytes write) : write_(std::move(write)) {}

  // Writes a record. name: up to 65535 bytes, different from all other records' names. crc: of
  // the bytes, if it is known.
  void add(const std::string& name, std::string_view bytes, std::optional<std::uint32_t> crc = {});
  // Writes the bytes after the last record: the directory.
  void finish();

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
  std::uint64_t at_ = 0;  // position of the next byte
};

}  // namespace ddprun
