#include "worker_lib/serialization/file_digest.h"

#include <algorithm>
#include <utility>

namespace ddprun {
namespace {

constexpr std::uint64_t kChainBytes = 4 << 20;    // between two states
constexpr std::uint64_t kMostChainStates = 4096;  // 260 KB of a manifest

}  // namespace

FileDigest::FileDigest(State state) : bytes_(state.bytes), chain_(std::move(state.chain)) {
  if (bytes_ == 0)
    digest_.emplace();
  else
    digest_.emplace(state.state, bytes_);
}

void FileDigest::add(std::string_view bytes) {
  while (!bytes.empty()) {
    const auto part = static_cast<std::size_t>(
        std::min<std::uint64_t>(bytes.size(), kChainBytes - bytes_ % kChainBytes));
    digest_->add(bytes.data(), part);
    bytes_ += part;
    bytes.remove_prefix(part);
    if (bytes_ % kChainBytes == 0) chain_ += digest_->state();
  }
}

FileDigest::State FileDigest::state() const {
  if (bytes_ == 0) return {};
  return {.bytes = bytes_, .state = digest_->state(), .chain = chain_};
}

WrittenFile FileDigest::finish(std::string name) {
  WrittenFile written{.name = std::move(name), .bytes = bytes_, .sha256 = digest_->hex()};
  // The chain has no state after the last byte: the digest says the same.
  chain_.resize(static_cast<std::size_t>(chain_states(bytes_, kChainBytes)) * kChainDigits);
  if (chain_.empty()) return written;
  written.chain_bytes = kChainBytes;
  written.chain = std::move(chain_);
  thin_out_chain(written, kMostChainStates);
  return written;
}

}  // namespace ddprun
