// SharedGroup: a CpuGroup of two or more ranks. It checks arguments, makes a ChunkedCall for each
// collective and drives it through its steps; cpu_group.h has the promises.
#pragma once

#include <memory>

#include "worker_lib/cpu/chunked_call.h"
#include "worker_lib/cpu/cpu_group.h"
#include "worker_lib/cpu/group_core.h"
#include "worker_lib/cpu/mailbox.h"
#include "worker_lib/cpu/reduce_calls.h"

namespace ddprun {

class SharedGroup final : public CpuGroup {
 public:
  explicit SharedGroup(std::unique_ptr<GroupCore> core);

  // Bytes that this class and its parts need in the segment.
  static SegmentNeeds segment_needs(int local_count);

  int rank() const override { return here_.rank; }
  int size() const override { return here_.layout.world_size(); }
  Result<void> all_reduce(void* data, std::size_t count, ElementType type, ReduceOp op,
                          Duration timeout) override;
  Result<void> reduce(void* data, std::size_t count, ElementType type, ReduceOp op, Rank root,
                      Duration timeout) override;
  Result<void> broadcast(void* data, std::size_t bytes, Rank root, Duration timeout) override;
  Result<void> all_gather(const void* input, std::span<void* const> outputs, std::size_t bytes,
                          Duration timeout) override;
  Result<void> reduce_scatter(std::span<const void* const> inputs, void* output, std::size_t count,
                              ElementType type, ReduceOp op, Duration timeout) override;
  Result<void> gather(const void* input, std::span<void* const> outputs, std::size_t bytes,
                      Rank root, Duration timeout) override;
  Result<void> scatter(std::span<const void* const> inputs, void* output, std::size_t bytes,
                       Rank root, Duration timeout) override;
  Result<void> barrier(Duration timeout) override;
  Result<void> send(const void* data, std::size_t bytes, Rank destination, int tag,
                    Duration timeout) override;
  Result<Rank> recv(void* data, std::size_t bytes, std::optional<Rank> source, int tag,
                    Duration timeout) override;
  void start_send(const void* data, std::size_t bytes, Rank destination, int tag, Duration timeout,
                  TransferDone done) override;
  void start_recv(void* data, std::size_t bytes, std::optional<Rank> source, int tag,
                  Duration timeout, TransferDone done) override;
  std::optional<Error> failure() const override { return core_->failure(); }
  void abort(const std::string& reason) override;

 private:
  Result<void> run_reduce(const ReduceJob& job, Duration timeout);
  Result<void> run(CallHeader header, ChunkedCall& call, Duration timeout);
  Result<void> take_steps(const CallHeader& header, ChunkedCall& call, const Attempt& attempt);
  Result<void> arrive(const CallHeader& header, const ChunkPipeline& pipeline,
                      const Attempt& attempt);
  Result<void> agree_on_node(const CallHeader& header, const Attempt& attempt);
  Result<void> agree_over_nodes(const CallHeader& header, const ChunkPipeline& pipeline,
                                const Attempt& attempt);
  TcpMesh::End exchange_headers(const CallHeader& header, TimePoint deadline);

  std::unique_ptr<GroupCore> core_;
  const Surroundings& here_;
  NodeBoard& board_;
  Mailbox mailbox_;
  ReduceScratch scratch_;
  std::uint64_t sequence_ = 0;      // of the last collective
  std::uint64_t next_arrival_ = 1;  // tick
  std::size_t next_chunk_ = 0;      // number, see ChunkedCall::Chunk
};

}  // namespace ddprun
