// Adds tensors to a SummaryWriter. A tensor may be on any device and have any strides; it is copied
// to the CPU in the call. Threads, failures and other ranks: as the functions of SummaryWriter.
#pragma once

#include <torch/types.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "ddprun/summary_writer.h"

namespace ddprun {

// Adds the distribution of a tensor of any shape and real dtype.
inline void add_histogram(SummaryWriter& writer, std::string_view tag, const torch::Tensor& values,
                          std::int64_t step) {
  if (!writer.is_writing()) return;
  const bool is_float = values.is_floating_point() && values.scalar_type() != torch::kDouble;
  const torch::Tensor copy =
      values.detach().to(torch::kCPU, is_float ? torch::kFloat : torch::kDouble).contiguous();
  const auto count = static_cast<std::size_t>(copy.numel());
  if (is_float) {
    writer.add_histogram(tag, std::span(copy.data_ptr<float>(), count), step);
  } else {
    writer.add_histogram(tag, std::span(copy.data_ptr<double>(), count), step);
  }
}

// Adds an image: uint8, or floating point from 0 to 1. Its shape is [channels, height, width] or
// [height, width, channels], as `layout` says, or [height, width]. Throws kInvalidArgument for
// another number of dimensions.
inline void add_image(SummaryWriter& writer, std::string_view tag, const torch::Tensor& image,
                      std::int64_t step, ImageShape::Layout layout = ImageShape::Layout::kCHW) {
  if (!writer.is_writing()) return;
  if (image.dim() != 2 && image.dim() != 3) {
    throw DistError(DistError::Kind::kInvalidArgument,
                    "add_image '" + std::string(tag) + "': a tensor of " +
                        std::to_string(image.dim()) + " dimensions (expected 2 or 3)");
  }
  const bool is_bytes = image.scalar_type() == torch::kByte;
  const torch::Tensor copy =
      image.detach().to(torch::kCPU, is_bytes ? torch::kByte : torch::kFloat).contiguous();
  const bool has_channels_last = layout == ImageShape::Layout::kHWC;
  const auto size = [&](std::int64_t dimension) { return static_cast<int>(copy.size(dimension)); };
  ImageShape shape{.height = size(0), .width = size(1), .channels = 1, .layout = layout};
  if (copy.dim() == 3) {
    shape.channels = size(has_channels_last ? 2 : 0);
    shape.height = size(has_channels_last ? 0 : 1);
    shape.width = size(has_channels_last ? 1 : 2);
  }
  const auto count = static_cast<std::size_t>(copy.numel());
  if (is_bytes) {
    writer.add_image(tag, std::span(copy.data_ptr<std::uint8_t>(), count), shape, step);
  } else {
    writer.add_image(tag, std::span(copy.data_ptr<float>(), count), shape, step);
  }
}

}  // namespace ddprun
