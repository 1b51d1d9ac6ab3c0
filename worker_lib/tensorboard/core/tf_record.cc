#include "worker_lib/tensorboard/core/tf_record.h"

#include <boost/crc.hpp>

#include "worker_lib/serialization/core/little_endian.h"

namespace ddprun {

std::uint32_t masked_crc32c(std::string_view bytes) {
  boost::crc_optimal<32, 0x1edc6f41, 0xffffffff, 0xffffffff, true, true> crc;
  crc.process_bytes(bytes.data(), bytes.size());
  const std::uint32_t sum = crc.checksum();
  return (sum >> 15 | sum << 17) + 0xa282ead8;
}

void add_tf_record(std::string& file, std::string_view data) {
  const std::size_t begin = file.size();
  add_little_endian(file, data.size(), 8);
  add_little_endian(file, masked_crc32c(std::string_view(file).substr(begin)), 4);
  file += data;
  add_little_endian(file, masked_crc32c(data), 4);
}

}  // namespace ddprun
