// Frames records as TensorFlow's TFRecord files do (tensorflow/core/lib/io/record_writer.h):
//
//   uint64 length | uint32 masked CRC32C of the length | data | uint32 masked CRC32C of the data
//
// A reader takes a record only if it is whole and both checksums match. Pure; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ddprun {

// Returns the CRC-32C (Castagnoli) of the bytes, masked as TFRecord files have it.
std::uint32_t masked_crc32c(std::string_view bytes);

// Appends the bytes to a file's text as one record.
void add_tf_record(std::string& file, std::string_view data);

}  // namespace ddprun
