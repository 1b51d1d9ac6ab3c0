// CmaCollective: an all_gather or all_to_all of long pieces on one node with a single copy. Each
// rank publishes where its bytes lie and copies what it needs from the others' private memory.
// No rank continues before all have done so.
//
//   stage     write the places of this rank's bytes
//   work      read from the places of the others (peer_memory.h), and stage whether that succeeded
//   copy out  check whether all succeeded: if not, nothing counts as done, and all ranks know it.
//             Also read what all ranks have found about pulling so far.
//
// It synchronizes twice, but each byte is copied once instead of twice.
#pragma once

#include <cstdint>
#include <vector>

#include "worker_lib/collective/core/scattered.h"
#include "worker_lib/cpu_calls/chunked_call.h"
#include "worker_lib/cpu_shm/peer_memory.h"

namespace ddprun {

// PullJob: the bytes that a rank offers to and takes from each rank of its node. Lists are by
// local index; the memory of their views must outlive the call.
struct PullJob {
  std::vector<ReadableBytes> offered;  // pieces that the others may take
  struct Take {
    Range pieces;        // range of the source's offered pieces
    Scattered<char> to;  // as many bytes; empty: nothing is taken
  };
  std::vector<Take> takes;    // by source
  bool found_quicker = true;  // this rank's result about pulling (cpu_calls/core/pull_trial.h)
};

class CmaCollective final : public ChunkedCall {
 public:
  CmaCollective(const GroupTopology& here, const PeerMemory& memory, const PullJob& job)
      : ChunkedCall(here), memory_(memory), job_(job) {}

  // Returns whether a stage has room for `pieces` places.
  static bool has_room(const GroupTopology& here, std::size_t pieces);

  ChunkPipeline::Work work_mode() const override { return ChunkPipeline::Work::kSome; }
  void stage(const Chunk& chunk) override;
  TcpMesh::End work(const Chunk& chunk, TimePoint deadline) override;
  void copy_out(const Chunk& chunk) override;

  // Returns, after the call, whether all ranks have read their bytes; the same on every rank.
  bool was_possible() const { return was_possible_; }
  // Returns, after the call, whether all ranks have found pulling faster; the same on every
  // rank.
  bool all_found_quicker() const { return all_found_quicker_; }

 private:
  bool read_all(const Chunk& chunk) const;

  // Place: one piece, in its rank's address space.
  struct Place {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
  };

  // Head: begins a rank's stage; its places follow.
  struct Head {
    std::uint32_t could_read = 0;
    std::uint32_t found_quicker = 0;
  };
  Head& head_of(int local, const Chunk& chunk) const {
    return *reinterpret_cast<Head*>(here_.stage(local, chunk.number));
  }
  Place* places_of(int local, const Chunk& chunk) const {
    return reinterpret_cast<Place*>(&head_of(local, chunk) + 1);
  }

  const PeerMemory& memory_;
  const PullJob& job_;
  bool was_possible_ = true;
  bool all_found_quicker_ = true;
};

}  // namespace ddprun
