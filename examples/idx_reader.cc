#include "examples/idx_reader.h"

#include <torch/torch.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

namespace examples {
namespace {

constexpr unsigned char kTypeByte = 0x08;
constexpr std::int64_t kMaxElements = std::int64_t{1} << 40;

[[noreturn]] void fail(const std::string& path, std::size_t offset, const std::string& what) {
  throw std::runtime_error("read " + path + ": at offset " + std::to_string(offset) + ": " + what);
}

std::string contents(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("read " + path + ": " + std::strerror(errno));
  return {std::istreambuf_iterator<char>(file), {}};
}

}  // namespace

torch::Tensor read_idx(const std::string& path) {
  const std::string bytes = contents(path);
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(bytes[i]); };
  if (bytes.size() < 4) fail(path, bytes.size(), "the file ends before its 4 magic bytes do");
  if (byte(0) != 0 || byte(1) != 0) fail(path, 0, "an IDX file begins with two zero bytes");
  if (byte(2) != kTypeByte)
    fail(path, 2, "element type " + std::to_string(byte(2)) + "; only bytes (8) can be read");
  const std::size_t dimensions = byte(3);
  if (dimensions == 0) fail(path, 3, "an array without dimensions");
  const std::size_t header = 4 + 4 * dimensions;
  if (bytes.size() < header)
    fail(path, bytes.size(), "the file ends within its " + std::to_string(dimensions) + " sizes");

  std::vector<std::int64_t> sizes;
  std::int64_t elements = 1;
  for (std::size_t at = 4; at < header; at += 4) {  // big-endian
    sizes.push_back(std::int64_t{byte(at)} << 24 | byte(at + 1) << 16 | byte(at + 2) << 8 |
                    byte(at + 3));
    if (sizes.back() > 0 && elements > kMaxElements / sizes.back())
      fail(path, at, "the sizes multiply to more than 2^40 elements");
    elements *= sizes.back();
  }
  const auto found = static_cast<std::int64_t>(bytes.size() - header);
  if (found != elements)
    fail(path, found < elements ? bytes.size() : header + static_cast<std::size_t>(elements),
         std::string(found < elements ? "the file ends" : "the file goes on") + ", with " +
             std::to_string(found) + " bytes of data where its sizes say " +
             std::to_string(elements));
  torch::Tensor tensor = torch::empty(sizes, torch::kUInt8);
  if (elements > 0)
    std::memcpy(tensor.mutable_data_ptr(), bytes.data() + header, bytes.size() - header);
  return tensor;
}

}  // namespace examples
