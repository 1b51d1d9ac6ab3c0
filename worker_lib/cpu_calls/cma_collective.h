// CmaCollective: an all_gather or all_to_all of long pieces on one node by a single copy: each rank says where its
// bytes lie, takes what it needs from the others' private memory, and nobody goes on before all have.
//
//   stage     the places of one's bytes
//   work      read from those of the others (peer_memory.h), and stage whether that went well
//   copy out  look whether all could: if not, nothing has been done, and all know it. And what all have
//             found about pulling so far
//
// Two meetings, but each byte is copied once instead of twice.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "worker_lib/collective/core/scattered.h"
#include "worker_lib/cpu_calls/chunked_call.h"
#include "worker_lib/cpu_shm/peer_memory.h"

namespace ddprun {

// What a rank offers to and takes from each rank of its node. Lists by local index; their views must
// outlive the call.
struct PullJob {
  std::vector<ReadableBytes> offered;  // pieces for the others to take
  struct Take {
    Range pieces;        // of those that the source offers
    Scattered<char> to;  // as many bytes; none: nothing is taken
  };
  std::vector<Take> takes;    // by source
  bool found_quicker = true;  // what this rank has to say of pulling (cpu_calls/core/pull_trial.h)
};

class CmaCollective final : public ChunkedCall {
 public:
  CmaCollective(const GroupTopology& here, const PeerMemory& memory, const PullJob& job)
      : here_(here), memory_(memory), job_(job) {}

  // Whether a stage has room for so many places.
  static bool has_room(const GroupTopology& here, std::size_t pieces);

  std::size_t chunks() const override { return 1; }
  ChunkPipeline::Work work_mode() const override { return ChunkPipeline::Work::kSome; }
  void stage(const Chunk& chunk) override;
  TcpMesh::End work(const Chunk& chunk, TimePoint deadline) override;
  void copy_out(const Chunk& chunk) override;

  // Afterwards, the same on every rank: whether all have what they take.
  bool was_possible() const { return was_possible_; }
  // Likewise: whether all have found pulling quicker.
  bool all_found_quicker() const { return all_found_quicker_; }

 private:
  bool read_all(const Chunk& chunk) const;

  // Of one piece, in its rank's address space.
  struct Place {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
  };

  // A rank's stage: this, and its places behind it.
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

  const GroupTopology& here_;
  const PeerMemory& memory_;
  const PullJob& job_;
  bool was_possible_ = true;
  bool all_found_quicker_ = true;
};

}  // namespace ddprun
