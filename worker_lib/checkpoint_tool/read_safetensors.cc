#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/concat.h"
#include "base/read_all.h"
#include "base/read_whole.h"
#include "base/regular_file.h"
#include "worker_lib/checkpoint/core/json_bounds.h"
#include "worker_lib/checkpoint_tool/report.h"
#include "worker_lib/checkpoint_tool/safetensors.h"
#include "worker_lib/checkpoint_tool/weights.h"
#include "worker_lib/serialization/core/little_endian.h"

namespace ddprun {
namespace {

constexpr std::uint64_t kMostHeaderBytes = 100'000'000;  // as in safetensors itself
constexpr JsonBounds kMostHeader{.depth = 8, .values = std::size_t{16} << 20};
constexpr std::size_t kMostDimensions = 64;

// Returns a number that is not negative; nullopt: it is something else.
std::optional<std::int64_t> count_in(const nlohmann::json& value) {
  if (!value.is_number_unsigned() || value.get<std::uint64_t>() > INT64_MAX) return std::nullopt;
  return value.get<std::int64_t>();
}

// Returns what is wrong with the entry; empty: nothing. data: where the tensors begin.
std::string read_entry(const nlohmann::json& entry, std::uint64_t data, std::uint64_t size,
                       Weight& weight) {
  if (!entry.is_object() || !entry.contains("dtype") || !entry["dtype"].is_string() ||
      !entry.contains("shape") || !entry["shape"].is_array() || !entry.contains("data_offsets") ||
      !entry["data_offsets"].is_array() || entry["data_offsets"].size() != 2)
    return "it has no dtype, shape and data_offsets";
  const auto dtype = torch_dtype(entry["dtype"].get<std::string>());
  if (!dtype) return "its dtype " + entry["dtype"].get<std::string>() + " is not one of PyTorch's";
  PickleTensor& tensor = weight.tensor;
  tensor.dtype = *dtype;
  std::int64_t bytes = dtype->bytes;
  if (entry["shape"].size() > kMostDimensions) return "it has too many dimensions";
  for (const nlohmann::json& one : entry["shape"]) {
    const auto dimension = count_in(one);
    if (!dimension) return "its shape is invalid";
    tensor.sizes.push_back(*dimension);
  }
  tensor.strides.resize(tensor.sizes.size());
  std::int64_t stride = 1;
  for (std::size_t i = tensor.sizes.size(); i > 0; --i) {
    tensor.strides[i - 1] = stride;
    if (__builtin_mul_overflow(stride, std::max<std::int64_t>(tensor.sizes[i - 1], 1), &stride))
      return "its shape is invalid";
  }
  for (const std::int64_t dimension : tensor.sizes)
    if (__builtin_mul_overflow(bytes, dimension, &bytes)) return "its shape is invalid";
  tensor.storage.bytes = bytes;
  const auto begin = count_in(entry["data_offsets"][0]), end = count_in(entry["data_offsets"][1]);
  if (!begin || !end || *begin > *end || static_cast<std::uint64_t>(*end) > size - data ||
      *end - *begin != bytes)
    return "its place does not fit its shape, or the file is cut off";
  weight.runs = {{.at = data + static_cast<std::uint64_t>(*begin),
                  .bytes = static_cast<std::uint64_t>(bytes)}};
  return "";
}

}  // namespace

Weights read_safetensors(const std::string& path) {
  const auto refuse = [&](const std::string& why) { refuse_damaged(path, why); };
  const Result<UniqueFd> fd = open_regular_file(path);
  if (!fd) refuse_files(fd.error().message());
  const Result<std::size_t> size = size_within(fd->get(), path, INT64_MAX);
  if (!size) refuse_files(size.error().message());
  const auto read = [&](std::uint64_t at, std::size_t bytes) {
    std::string text(bytes, '\0');
    const ssize_t count = pread_all(fd->get(), text.data(), bytes, at);
    if (count < 0) refuse_files(system_error("read " + path, errno).message());
    text.resize(static_cast<std::size_t>(count));
    return text;
  };
  const std::string length = read(0, 8);
  const std::uint64_t header_bytes = read_little_endian(length);
  if (length.size() < 8 || header_bytes > *size - 8 || header_bytes > kMostHeaderBytes)
    refuse("it is not a file of safetensors, or it is cut off");
  const std::string text = read(8, static_cast<std::size_t>(header_bytes));
  if (const auto beyond = beyond_bounds(text, kMostHeader)) refuse(*beyond);
  const auto header = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!header.is_object()) refuse("its header is not JSON");
  Weights result{.paths = {path}};
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    Weight weight{.name = name};
    if (const std::string why = read_entry(entry, 8 + header_bytes, *size, weight); !why.empty())
      refuse(concat("the tensor '", name, "': ", why));
    result.weights.push_back(std::move(weight));
  }
  // The format forbids this, and a small file could become a large one.
  std::vector<const Weight*> in_order;
  for (const Weight& weight : result.weights) in_order.push_back(&weight);
  std::ranges::sort(in_order, {}, [](const Weight* one) { return one->runs[0].at; });
  std::uint64_t end = 0;
  for (const Weight* const weight : in_order) {
    if (weight->runs[0].bytes == 0) continue;
    if (weight->runs[0].at < end)
      refuse(concat("the tensor '", weight->name, "' overlaps another one"));
    end = weight->runs[0].at + weight->runs[0].bytes;
  }
  return result;
}

}  // namespace ddprun
