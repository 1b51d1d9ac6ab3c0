// Encodes images as PNG (W3C "Portable Network Graphics"), not compressed: the pixels are stored
// deflate blocks, so that no compression library is needed. Pure; any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace ddprun {

// pixels: rows from top to bottom, 8 bits a channel, the channels of a pixel together.
// channels: 1 (grey), 2 (grey, alpha), 3 (RGB) or 4 (RGBA).
// REQUIRES: width, height > 0, and height * width * channels pixels.
std::string png(std::span<const std::uint8_t> pixels, int height, int width, int channels);

}  // namespace ddprun
