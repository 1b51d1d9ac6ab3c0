#include "worker_lib/tensorboard/core/png.h"

#include <algorithm>
#include <string_view>

#include "base/assert.h"
#include "worker_lib/serialization/core/crc32.h"
#include "worker_lib/serialization/core/little_endian.h"

namespace ddprun {
namespace {

constexpr std::size_t kMaxStored = 65535;  // bytes of a stored block

void add_big_endian(std::string& text, std::uint32_t number) {
  for (int shift = 24; shift >= 0; shift -= 8) text += static_cast<char>(number >> shift);
}

void add_chunk(std::string& file, std::string_view type, std::string_view data) {
  add_big_endian(file, static_cast<std::uint32_t>(data.size()));
  const std::size_t begin = file.size();
  file += type;
  file += data;
  add_big_endian(file, crc32(std::string_view(file).substr(begin)));
}

std::uint32_t adler32(std::string_view bytes) {
  std::uint32_t a = 1;
  std::uint32_t b = 0;
  for (const char byte : bytes) {
    a = (a + static_cast<unsigned char>(byte)) % 65521;
    b = (b + a) % 65521;
  }
  return b << 16 | a;
}

// Returns the bytes as a zlib stream (RFC 1950) of stored blocks (RFC 1951, 3.2.4).
std::string stored_zlib(std::string_view bytes) {
  std::string stream = "\x78\x01";
  std::size_t begin = 0;
  do {
    const std::string_view block = bytes.substr(begin, kMaxStored);
    begin += block.size();
    stream += static_cast<char>(begin == bytes.size());  // the last block
    add_little_endian(stream, block.size(), 2);
    add_little_endian(stream, ~block.size(), 2);
    stream += block;
  } while (begin < bytes.size());
  add_big_endian(stream, adler32(bytes));
  return stream;
}

}  // namespace

std::string png(std::span<const std::uint8_t> pixels, int height, int width, int channels) {
  const std::size_t row = static_cast<std::size_t>(width) * static_cast<std::size_t>(channels);
  DDPRUN_ASSERT(row > 0 && pixels.size() == row * static_cast<std::size_t>(height),
                "the pixels fill the image");
  const char color_types[] = {0, 4, 2, 6};
  std::string header;
  add_big_endian(header, static_cast<std::uint32_t>(width));
  add_big_endian(header, static_cast<std::uint32_t>(height));
  header += {8, color_types[channels - 1], 0, 0, 0};  // bits; deflate, filters, not interlaced
  std::string rows;
  rows.reserve(pixels.size() + static_cast<std::size_t>(height));
  for (std::size_t begin = 0; begin < pixels.size(); begin += row) {
    rows += '\0';  // no filter
    rows.append(reinterpret_cast<const char*>(pixels.data()) + begin, row);
  }
  std::string file = "\x89PNG\r\n\x1a\n";
  add_chunk(file, "IHDR", header);
  add_chunk(file, "IDAT", stored_zlib(rows));
  add_chunk(file, "IEND", "");
  return file;
}

}  // namespace ddprun
