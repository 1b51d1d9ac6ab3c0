// SmallZip: a zip archive of stored records, made by hand, for tests that damage it.
#pragma once

#include <boost/crc.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace ddprun {

struct SmallZip {
  std::vector<std::pair<std::string, std::string>> records;  // name, bytes
  int method = 0;                                            // 8: deflated
  int flags = 0;                                             // 1: encrypted

  static std::string number(std::uint64_t value, int bytes) {
    std::string result;
    for (int i = 0; i < bytes; ++i)
      result += static_cast<char>(i < 8 ? value >> (8 * i) : 0);  // bytes beyond the number are 0
    return result;
  }

  std::string archive() const {
    std::string file, directory;
    for (const auto& [name, bytes] : records) {
      boost::crc_32_type crc;
      crc.process_bytes(bytes.data(), bytes.size());
      // The fields that both headers of the record share.
      const std::string common = number(static_cast<std::uint64_t>(flags), 2) +
                                 number(static_cast<std::uint64_t>(method), 2) + number(0, 4) +
                                 number(crc.checksum(), 4) + number(bytes.size(), 4) +
                                 number(bytes.size(), 4) + number(name.size(), 2) + number(0, 2);
      directory += "PK\1\2" + number(20, 2) + number(20, 2) + common + number(0, 10) +
                   number(file.size(), 4) + name;
      file += "PK\3\4" + number(20, 2) + common + name + bytes;
    }
    const std::string end = "PK\5\6" + number(0, 4) + number(records.size(), 2) +
                            number(records.size(), 2) + number(directory.size(), 4) +
                            number(file.size(), 4) + number(0, 2);
    return file + directory + end;
  }
};

}  // namespace ddprun
