#include "examples/idx_reader.h"

#include <torch/torch.h>

#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <memory>
#include <stdexcept>

namespace examples {
namespace {

constexpr unsigned char kTypeByte = 0x08;
constexpr std::int64_t kMaxElements = std::int64_t{1} << 40;

[[noreturn]] void fail(const std::string& path, std::size_t offset, const std::string& what) {
  throw std::runtime_error("read " + path + ": at offset " + std::to_string(offset) + ": " + what);
}

// Returns `path`, or the name of the gzip file if only that exists.
std::string found_at(const std::string& path) {
  return !std::filesystem::exists(path) && std::filesystem::exists(path + ".gz") ? path + ".gz"
                                                                                 : path;
}

// DataFile: the data of a file, unpacked if it is a gzip file. It reads and allocates only what the
// caller requests.
class DataFile {
 public:
  explicit DataFile(std::string path) : path_(std::move(path)) {
    errno = 0;
    file_.reset(gzopen(path_.c_str(), "rb"));
    if (!file_) throw std::runtime_error("read " + path_ + ": " + std::strerror(errno));
  }

  // Returns `count` bytes; fewer only at the end of the data.
  std::string read(std::size_t count) {
    constexpr std::size_t kPart = 1 << 20;
    std::string bytes;
    while (bytes.size() < count) {
      const std::size_t before = bytes.size();
      const std::size_t part = std::min(kPart, count - before);
      bytes.resize(before + part);
      const int got = gzread(file_.get(), bytes.data() + before, static_cast<unsigned>(part));
      bytes.resize(before + static_cast<std::size_t>(std::max(got, 0)));
      if (got <= 0) expect_end(bytes.size());
      if (got <= 0) break;
    }
    offset_ += bytes.size();
    return bytes;
  }

 private:
  void expect_end(std::size_t read_now) const {
    const std::size_t at = offset_ + read_now;
    int code = Z_OK;
    const char* what = gzerror(file_.get(), &code);
    if (code == Z_BUF_ERROR) fail(path_, at, "the gzip file ends in the middle");
    if (code != Z_OK && code != Z_STREAM_END)
      fail(path_, at, code == Z_ERRNO ? std::strerror(errno) : what);
  }

  struct Close {
    void operator()(gzFile_s* file) const { gzclose(file); }
  };
  const std::string path_;
  std::unique_ptr<gzFile_s, Close> file_;
  std::size_t offset_ = 0;
};

}  // namespace

torch::Tensor read_idx(const std::string& name) {
  const std::string path = found_at(name);
  DataFile file(path);
  std::string header = file.read(4);
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(header[i]); };
  if (header.size() < 4) fail(path, header.size(), "the file ends before its 4 magic bytes do");
  if (byte(0) != 0 || byte(1) != 0) fail(path, 0, "an IDX file begins with two zero bytes");
  if (byte(2) != kTypeByte)
    fail(path, 2, "element type " + std::to_string(byte(2)) + "; only bytes (8) can be read");
  const std::size_t dimensions = byte(3);
  if (dimensions == 0) fail(path, 3, "an array without dimensions");
  const std::size_t header_bytes = 4 + 4 * dimensions;
  header += file.read(header_bytes - 4);
  if (header.size() < header_bytes)
    fail(path, header.size(), "the file ends within its " + std::to_string(dimensions) + " sizes");

  std::vector<std::int64_t> sizes;
  std::int64_t product = 1;                               // of the sizes that are not 0
  for (std::size_t at = 4; at < header_bytes; at += 4) {  // big-endian
    sizes.push_back(std::int64_t{byte(at)} << 24 | byte(at + 1) << 16 | byte(at + 2) << 8 |
                    byte(at + 3));
    if (sizes.back() > 0 && product > kMaxElements / sizes.back())
      fail(path, at, "the sizes multiply to more than 2^40 elements");
    product *= std::max<std::int64_t>(sizes.back(), 1);
  }
  const auto elements = static_cast<std::size_t>(std::ranges::count(sizes, 0) > 0 ? 0 : product);
  const std::string bytes = file.read(elements + 1);
  if (bytes.size() < elements)
    fail(path, header_bytes + bytes.size(),
         "the file ends, with " + std::to_string(bytes.size()) +
             " bytes of data, but its sizes say " + std::to_string(elements));
  if (bytes.size() > elements)
    fail(path, header_bytes + elements,
         "the file continues, but its sizes say " + std::to_string(elements) + " bytes of data");
  torch::Tensor tensor = torch::empty(sizes, torch::kUInt8);
  if (elements > 0) std::memcpy(tensor.mutable_data_ptr(), bytes.data(), elements);
  return tensor;
}

}  // namespace examples
