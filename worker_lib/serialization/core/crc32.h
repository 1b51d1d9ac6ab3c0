// CRC-32 of zip archives (ISO 3309, reflected). It uses the processor's carry-less
// multiplication if there is one, which is 15 times as fast as tables. So it costs almost
// nothing compared with a disk. Pure; any thread.
#pragma once

#include <cstdint>
#include <string_view>

namespace ddprun {

// Returns the CRC of the earlier bytes, whose CRC is `so_far`, followed by these bytes. Start
// with 0.
std::uint32_t crc32(std::string_view bytes, std::uint32_t so_far = 0);

// The same with tables only, for other processors.
std::uint32_t crc32_by_tables(std::string_view bytes, std::uint32_t so_far = 0);

}  // namespace ddprun
