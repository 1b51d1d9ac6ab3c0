// Writes a checkpoint in the format of another tool. Free functions; failures throw Failed.
#pragma once

#include <optional>
#include <string>

#include "worker_lib/checkpoint_tool/opened.h"

namespace ddprun {

enum class ExportFormat { kTorch, kSafetensors, kDcp };

// Writes a new file, or for kDcp a new directory. It is complete or absent, and an existing one is
// never replaced. Prints a line.
void export_to(ExportFormat format, const Opened& opened, const std::string& output);

}  // namespace ddprun
