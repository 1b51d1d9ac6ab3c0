// What several parts say of a tensor, in one way. Pure functions; any thread.
#pragma once

#include <torch/types.h>

#include <cstddef>
#include <sstream>
#include <string>

namespace ddprun {

// What << writes: "[2, 3]" of sizes or strides.
template <class T>
std::string text_of(const T& value) {
  std::ostringstream text;
  text << value;
  return text.str();
}

// "Float of shape [2, 3]".
inline std::string dtype_and_shape(const torch::Tensor& tensor) {
  return std::string(c10::toString(tensor.scalar_type())) + " of shape " + text_of(tensor.sizes());
}

inline std::size_t count_of(const torch::Tensor& tensor) {
  return static_cast<std::size_t>(tensor.numel());
}

}  // namespace ddprun
