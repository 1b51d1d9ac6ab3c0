// ZipWriter: what stands around the records of a zip archive that torch.load reads. A record is
// stored as it is, at a multiple of 64 bytes (so that it can be mapped), its size and CRC behind
// it: whoever writes goes through it once.
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
  // What comes before a record. name: up to 65535 bytes, and no other record's.
  std::string begin(std::string name, std::uint64_t bytes);
  // What comes behind the record that was begun.
  std::string end(std::uint32_t crc);
  // What comes behind the last record: the directory.
  std::string finish() const;

 private:
  struct Record {
    std::string name;
    std::uint64_t at = 0;  // of what begin() returned
    std::uint64_t bytes = 0;
    std::uint32_t crc = 0;
  };

  std::vector<Record> records_;
  std::uint64_t at_ = 0;  // where the next byte goes
};

}  // namespace ddprun
