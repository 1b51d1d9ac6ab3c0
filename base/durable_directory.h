// Directories whose names are to outlive a loss of power. Any thread.
#pragma once

#include <string>

#include "base/result.h"

namespace ddprun {

// Puts the names in a directory onto the disk: a new file is safe when it and its name are.
Result<void> flush_directory(const std::string& path);

// Makes a directory and those above it where they are missing, each with its name on the disk. That
// goes for what somebody made here who was killed before its name was there, too.
Result<void> make_durable_directory(const std::string& path);

}  // namespace ddprun
