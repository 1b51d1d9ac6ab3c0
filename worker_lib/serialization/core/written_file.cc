#include "worker_lib/serialization/core/written_file.h"

namespace ddprun {

std::string temporary_name(std::string_view name, std::string_view unique) {
  return std::string(name) + "." + std::string(unique) + std::string(kTemporarySuffix);
}

}  // namespace ddprun
