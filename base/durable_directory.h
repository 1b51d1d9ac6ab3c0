// Makes directories and file names durable, so that they survive a loss of power. Any thread.
#pragma once

#include <string>

#include "base/result.h"

namespace ddprun {

// Makes the names in a directory durable. A new file is durable when both it and its name are.
Result<void> flush_directory(const std::string& path);

// Makes a directory and its missing parents, and makes each of their names durable. The deepest
// directory that already exists is included, because its maker may have been killed before the
// name was durable.
Result<void> make_durable_directory(const std::string& path);

}  // namespace ddprun
