#include "worker_lib/serialization/core/written_file.h"

#include <utility>

namespace ddprun {

void thin_out_chain(WrittenFile& file, std::uint64_t most) {
  while (chain_states(file.bytes, file.chain_bytes) > most) {
    WrittenFile thinner = file;
    thinner.chain_bytes = 2 * file.chain_bytes;
    thinner.chain.clear();
    for (std::uint64_t at = thinner.chain_bytes; at < file.bytes; at += thinner.chain_bytes)
      thinner.chain += state_after(file, at);
    file = std::move(thinner);
    if (file.chain.empty()) file.chain_bytes = 0;
  }
}

}  // namespace ddprun
