// Writes and reads checkpoint contents in memory instead of a file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "worker_lib/serialization/checkpoint_state.h"

namespace ddprun {

inline std::vector<char> pickled(const c10::IValue& top) {
  std::vector<char> bytes;
  write_pickle(top, [&](const void* data, std::size_t size) {
    bytes.insert(bytes.end(), static_cast<const char*>(data),
                 static_cast<const char*>(data) + size);
  });
  return bytes;
}

inline std::string_view text_of(const std::vector<char>& bytes) {
  return {bytes.data(), bytes.size()};
}

// Writes and reads back a value. Errors name the file "f.pt".
inline c10::IValue through_a_file(const c10::IValue& top) {
  return read_pickle(text_of(pickled(top)), "f.pt");
}

// Returns the entry of a dict. Throws DistError if there is none.
inline c10::IValue entry_of(const c10::IValue& dict, const std::string& key) {
  return SavedValue{dict, "it"}.at(key).value;
}

inline bool has_entry(const c10::IValue& dict, const std::string& key) {
  return SavedValue{dict, "it"}.find(key).has_value();
}

}  // namespace ddprun
