#include "worker_lib/tensorboard/core/tf_record.h"

#include "base/crc32c.h"
#include "worker_lib/serialization/core/little_endian.h"

namespace ddprun {

std::uint32_t masked_crc32c(std::string_view bytes) {
  const std::uint32_t sum = crc32c({bytes});
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
