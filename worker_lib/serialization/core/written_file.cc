#include "worker_lib/serialization/core/written_file.h"

#include <utility>

namespace ddprun {

void thin_out_chain(WrittenFile& file, std::uint64_t most) {
  std::uint64_t spacing = file.chain_bytes;
  while (chain_states(file.bytes, spacing) > most) spacing *= 2;
  if (spacing == file.chain_bytes) return;
  std::string kept;
  for (std::uint64_t at = spacing; at < file.bytes; at += spacing) kept += state_after(file, at);
  file.chain_bytes = kept.empty() ? 0 : spacing;
  file.chain = std::move(kept);
}

}  // namespace ddprun
