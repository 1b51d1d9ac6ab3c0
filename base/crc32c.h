// CRC-32C (Castagnoli), the checksum of iSCSI (RFC 3720, appendix B.4), ext4 and TensorFlow.
//
// Pure; any thread.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string_view>

namespace ddprun {

// Returns the checksum of the parts, one after the other.
std::uint32_t crc32c(std::initializer_list<std::string_view> parts);

}  // namespace ddprun
