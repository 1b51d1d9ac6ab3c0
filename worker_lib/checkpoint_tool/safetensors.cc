#include "worker_lib/checkpoint_tool/safetensors.h"

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <utility>

#include "worker_lib/serialization/core/little_endian.h"

namespace ddprun {
namespace {

constexpr std::size_t kLengthBytes = 8;
constexpr std::size_t kAlignment = 8;

struct Names {
  PickleDtype dtype;
  std::string_view name;
};
constexpr std::array kDtypes = std::to_array<Names>({
    {{"float64", 8}, "F64"},
    {{"float32", 4}, "F32"},
    {{"float16", 2}, "F16"},
    {{"bfloat16", 2}, "BF16"},
    {{"int64", 8}, "I64"},
    {{"int32", 4}, "I32"},
    {{"int16", 2}, "I16"},
    {{"int8", 1}, "I8"},
    {{"uint64", 8}, "U64"},
    {{"uint32", 4}, "U32"},
    {{"uint16", 2}, "U16"},
    {{"uint8", 1}, "U8"},
    {{"bool", 1}, "BOOL"},
    {{"complex64", 8}, "C64"},
    {{"float8_e4m3fn", 1}, "F8_E4M3"},
    {{"float8_e5m2", 1}, "F8_E5M2"},
    {{"float8_e8m0fnu", 1}, "F8_E8M0"},
});

}  // namespace

std::string_view safetensors_dtype(std::string_view dtype) {
  const auto found =
      std::ranges::find_if(kDtypes, [&](const Names& one) { return one.dtype.name == dtype; });
  return found == kDtypes.end() ? std::string_view() : found->name;
}

std::optional<PickleDtype> torch_dtype(std::string_view name) {
  const auto found = std::ranges::find(kDtypes, name, &Names::name);
  return found == kDtypes.end() ? std::nullopt : std::optional(found->dtype);
}

std::string safetensors_header(const std::vector<SafetensorsEntry>& entries,
                               std::optional<std::int64_t> step) {
  nlohmann::json header;
  header["__metadata__"]["format"] = "pt";  // transformers reads no file without it
  if (step) header["__metadata__"]["step"] = std::to_string(*step);
  for (const SafetensorsEntry& entry : entries)
    header[entry.name] = {{"dtype", safetensors_dtype(entry.dtype)},
                          {"shape", entry.sizes},
                          {"data_offsets", {entry.begin, entry.end}}};
  std::string text = header.dump();
  text.append((kAlignment - text.size() % kAlignment) % kAlignment, ' ');
  std::string result;
  add_little_endian(result, text.size(), kLengthBytes);
  return result + text;
}

}  // namespace ddprun
