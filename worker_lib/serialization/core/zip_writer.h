// ZipWriter: makes the headers of a zip archive that torch.load reads. A record is stored
// uncompressed, at a multiple of 64 bytes (so that it can be mapped). Its size and CRC follow
// it, so that the writer reads the data only once.
//
//   ZipWriter zip;
//   write(zip.begin("archive/data.pkl", bytes.size())); write(bytes); write(zip.end(crc32(bytes)));
//   write(zip.finish());
//
// Pure; one owner thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ddprun {

class ZipWriter {
 public:
  // Returns the bytes before a record. name: up to 65535 bytes, different from all other
  // records' names.
  std::string begin(std::string name, std::uint64_t bytes);
  // Returns the bytes after the record that was begun.
  std::string end(std::uint32_t crc);
  // Returns the bytes after the last record: the directory.
  std::string finish() const;

 private:
  struct Record {
    std::string name;
    std::uint64_t at = 0;  // where the result of begin() is
    std::uint64_t bytes = 0;
    std::uint32_t crc = 0;
  };

  std::vector<Record> records_;
  std::uint64_t at_ = 0;  // position of the next byte
};

}  // namespace ddprun
