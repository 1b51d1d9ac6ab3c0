// Reads the IDX files of MNIST and similar datasets (http://yann.lecun.com/exdb/mnist): a header
// with the number and the sizes of the dimensions, and then one byte for each element. Any thread.
#pragma once

#include <torch/types.h>

#include <string>

namespace examples {

// Returns the file's array as a uint8 tensor of its dimensions. If there is no such file, reads the
// one with ".gz" appended to the name. Recognizes gzip files by their contents.
//
// Throws std::runtime_error if the file is missing, not an IDX file of bytes, cut off, damaged, or
// longer than its header says. It names the file; except for a missing file, it also names the
// offset in the unpacked data.
torch::Tensor read_idx(const std::string& path);

}  // namespace examples
