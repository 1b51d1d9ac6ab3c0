// Facts of the zip format that its reader and its writer share (PKWARE's APPNOTE.TXT, 6.3.10).
#pragma once

#include <cstddef>
#include <cstdint>

namespace ddprun {

inline constexpr std::size_t kZipLocalBytes = 30;       // a record's own header, without its name
inline constexpr std::uint64_t kZipMax32 = 0xffffffff;  // then the value is in the zip64 field
inline constexpr std::uint16_t kZip64Extra = 1;         // the id of that field

}  // namespace ddprun
