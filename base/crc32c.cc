#include "base/crc32c.h"

#include <boost/crc.hpp>

namespace ddprun {

std::uint32_t crc32c(std::initializer_list<std::string_view> parts) {
  boost::crc_optimal<32, 0x1edc6f41, 0xffffffff, 0xffffffff, true, true> crc;
  for (const std::string_view part : parts) crc.process_bytes(part.data(), part.size());
  return crc.checksum();
}

}  // namespace ddprun
