// Reads the IDX files of MNIST and its relatives (http://yann.lecun.com/exdb/mnist): a header that
// says how many dimensions of which sizes, and then one byte for each element. Pure functions; any
// thread.
#pragma once

#include <torch/types.h>

#include <string>

namespace examples {

// The file's array as a uint8 tensor of its dimensions. Where there is no such file, but one with
// ".gz" behind its name, that one; gzip files are told by their contents. Throws std::runtime_error
// that names file and offset when the file is missing, no IDX file of bytes, cut off, damaged, or
// longer than its header says. Offsets are in the data, unpacked.
torch::Tensor read_idx(const std::string& path);

}  // namespace examples
