#include "worker_lib/checkpoint/manifest_text.h"

#include <limits>
#include <utility>

#include "base/concat.h"
#include "base/terminal_text.h"
#include "worker_lib/util/chained_sha256.h"
#include "worker_lib/util/sha256.h"

namespace ddprun {
namespace {

using nlohmann::json;

constexpr const char* kSelfDigest = "manifest_sha256";

// Returns null unless `text` is exactly the encode_manifest() of some document, unknown keys
// included.
json whole_document(const std::string& text) {
  json document = json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!document.is_object() || document.dump(1) + "\n" != text) return nullptr;
  const auto digest = document.find(kSelfDigest);
  if (digest == document.end()) return nullptr;
  const json claimed = *digest;
  document.erase(digest);
  if (claimed != sha256_hex(document.dump())) return nullptr;
  return document;
}

// Thrown within this file only.
struct WrongField {
  std::string what;
};

[[noreturn]] void refuse_field(const char* key, const std::string& is,
                               const std::string& expected) {
  throw WrongField{concat("its '", key, "' is ", is, ", ", expected, " was expected")};
}

std::string type_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found == object.end() ? "missing" : concat("a ", found->type_name());
}

std::int64_t integer(const json& object, const char* key, std::int64_t least = 0) {
  const auto found = object.find(key);
  const bool fits =
      found != object.end() && found->is_number_integer() &&
      (!found->is_number_unsigned() || std::in_range<std::int64_t>(found->get<std::uint64_t>()));
  if (fits && found->get<std::int64_t>() >= least) return found->get<std::int64_t>();
  refuse_field(key, fits ? found->dump() : type_of(object, key),
               concat("an integer of at least ", least));
}

std::string text_in(const json& object, const char* key) {
  const auto found = object.find(key);
  if (found == object.end() || !found->is_string())
    refuse_field(key, type_of(object, key), "a string");
  return found->get<std::string>();
}

WrittenFile file_of(const json& object) {
  WrittenFile file{text_in(object, "name"), static_cast<std::uint64_t>(integer(object, "bytes")),
                   text_in(object, "sha256")};
  if (!object.contains("chain")) return file;
  file.chain_bytes = static_cast<std::uint64_t>(integer(object, "chain_bytes", 1));
  file.chain = text_in(object, "chain");
  // Divided, because a product could be out of range.
  bool fits = file.chain_bytes % ChainedSha256::kBlockBytes == 0 &&
              file.chain.size() % kChainDigits == 0 &&
              file.chain.size() / kChainDigits == chain_states(file.bytes, file.chain_bytes);
  for (std::size_t at = 0; fits && at < file.chain.size(); at += kChainDigits)
    fits = ChainedSha256::is_state(std::string_view(file.chain).substr(at, kChainDigits));
  if (!fits)
    throw WrongField{
        concat("the 'chain' of '", terminal_line(file.name), "' does not fit its size")};
  return file;
}

std::vector<WrittenFile> files_in(const json& document) {
  const auto files = document.find("files");
  if (files == document.end() || !files->is_array())
    throw WrongField{"its 'files' is not an array"};
  std::vector<WrittenFile> result;
  for (const json& file : *files) {
    if (!file.is_object()) throw WrongField{"an element of its 'files' is not an object"};
    result.push_back(file_of(file));
  }
  return result;
}

}  // namespace

void to_json(json& object, const WrittenFile& file) {
  object = {{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256}};
  if (file.chain.empty()) return;
  object["chain_bytes"] = file.chain_bytes;
  object["chain"] = file.chain;
}

void from_json(const json& object, WrittenFile& file) { file = file_of(object); }

// nlohmann::json sorts keys, so a manifest has exactly one text.
std::string encode_manifest(const CheckpointManifest& manifest) {
  json document{{"format", manifest.format},         {"step", manifest.step},
                {"epoch", manifest.epoch},           {"generation", manifest.generation},
                {"world_size", manifest.world_size}, {"files", manifest.files}};
  if (manifest.metric) document["metric"] = *manifest.metric;
  if (manifest.claim > 0) document["claim"] = manifest.claim;
  if (!manifest.model.empty()) document["model"] = manifest.model;
  if (!manifest.data.empty()) document["data"] = manifest.data;
  document[kSelfDigest] = sha256_hex(document.dump());
  return document.dump(1) + "\n";
}

Result<CheckpointManifest> decode_manifest(const std::string& text) try {
  const json document = whole_document(text);
  if (document.is_null())
    throw WrongField{"the manifest does not match its own SHA-256: it is damaged or cut off"};
  const std::int64_t format = integer(document, "format");
  if (format != kCheckpointFormat)
    return Error{.kind = ErrorKind::kUnsupported,
                 .cause = concat("it has format ", format, ", this program reads format ",
                                 kCheckpointFormat)};
  const std::int64_t world_size = integer(document, "world_size");
  if (world_size < 1 || !std::in_range<int>(world_size))
    throw WrongField{concat("its 'world_size' is ", world_size, ", which no world has")};
  constexpr auto kAny = std::numeric_limits<std::int64_t>::min();
  CheckpointManifest manifest{.step = integer(document, "step"),
                              // Programs may count epochs from -1.
                              .epoch = integer(document, "epoch", kAny),
                              .generation = integer(document, "generation", kAny),
                              .world_size = static_cast<int>(world_size)};
  if (const auto metric = document.find("metric"); metric != document.end()) {
    if (!metric->is_number()) throw WrongField{"its 'metric' is not a number"};
    manifest.metric = metric->get<double>();
  }
  if (document.contains("claim")) manifest.claim = integer(document, "claim");
  if (document.contains("model")) manifest.model = text_in(document, "model");
  if (document.contains("data")) manifest.data = text_in(document, "data");
  manifest.files = files_in(document);
  return manifest;
} catch (const WrongField& wrong) {
  return Error{.kind = ErrorKind::kCorrupt, .cause = wrong.what};
}

}  // namespace ddprun
