// The text of a manifest: JSON that holds its own SHA-256.
//
// Pure functions; any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "base/result.h"
#include "worker_lib/checkpoint/core/manifest.h"

namespace ddprun {

// Convert an element of the manifest's list of files. from_json() is for what to_json() has made.
void to_json(nlohmann::json& object, const WrittenFile& file);
void from_json(const nlohmann::json& object, WrittenFile& file);

// Returns the one text that a manifest has.
std::string encode_manifest(const CheckpointManifest& manifest);

// Parses it; keys that later versions add are ignored. kCorrupt: the text is damaged or cut off, or
// a field is missing or wrong. kUnsupported: another format.
Result<CheckpointManifest> decode_manifest(const std::string& text);

}  // namespace ddprun
