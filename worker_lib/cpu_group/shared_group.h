// SharedGroup: a CpuGroup of two or more ranks. It checks arguments, makes a ChunkedCall for
// each collective, or for each of its phases, and drives it through its steps. cpu_group.h has
// the promises.
#pragma once

#include <memory>

#include "worker_lib/cpu_calls/chunked_call.h"
#include "worker_lib/cpu_calls/cma_collective.h"
#include "worker_lib/cpu_calls/core/pull_trial.h"
#include "worker_lib/cpu_calls/reduce_collectives.h"
#include "worker_lib/cpu_group/cpu_group.h"
#include "worker_lib/cpu_group/group_core.h"
#include "worker_lib/cpu_group/mailbox.h"
#include "worker_lib/cpu_shm/core/pair_sizes.h"
#include "worker_lib/cpu_shm/shared_heap.h"

namespace ddprun {

class SharedGroup final : public CpuGroup {
 public:
  explicit SharedGroup(std::unique_ptr<GroupCore> core);

  // Returns the bytes that this class and its parts need in the segment.
  static SegmentNeeds segment_needs(int local_count, int world_size);

  int rank() const override { return here_.rank; }
  int size() const override { return here_.layout.world_size(); }
  Result<void> all_reduce(std::span<const WritableBytes> tensors, ElementType type, ReduceOp op,
                          const CpuCallOptions& terms) override;
  Result<void> reduce(std::span<const WritableBytes> tensors, ElementType type, ReduceOp op,
                      Rank root, const CpuCallOptions& terms) override;
  Result<void> broadcast(std::span<const WritableBytes> tensors, Rank root,
                         const CpuCallOptions& terms) override;
  Result<void> all_gather(std::span<const ReadableBytes> inputs,
                          std::span<const WritableBytes> outputs,
                          const CpuCallOptions& terms) override;
  Result<void> reduce_scatter(std::span<const ReadableBytes> inputs,
                              std::span<const WritableBytes> outputs, ElementType type, ReduceOp op,
                              const CpuCallOptions& terms) override;
  Result<void> gather(ReadableBytes input, std::span<const WritableBytes> outputs, Rank root,
                      const CpuCallOptions& terms) override;
  Result<void> scatter(std::span<const ReadableBytes> inputs, WritableBytes output, Rank root,
                       const CpuCallOptions& terms) override;
  Result<void> all_to_all(std::span<const ReadableBytes> inputs,
                          std::span<const WritableBytes> outputs,
                          const CpuCallOptions& terms) override;
  Result<void> barrier(Duration timeout) override;
  Result<void> send(const void* data, std::size_t bytes, Rank destination, int tag,
                    Duration timeout) override;
  Result<Rank> recv(void* data, std::size_t bytes, std::optional<Rank> source, int tag,
                    Duration timeout) override;
  void start_send(const void* data, std::size_t bytes, Rank destination, int tag, Duration timeout,
                  TransferDone done) override;
  void start_recv(void* data, std::size_t bytes, std::optional<Rank> source, int tag,
                  Duration timeout, TransferDone done) override;
  bool await_messages(Duration patience) override { return mailbox_.await_idle(patience); }
  std::shared_ptr<char> shared_memory(std::size_t bytes) override;
  void write_note(std::string_view note) override { progress_.write_note(note); }
  std::vector<std::string> notes(Duration patience) override {
    return core_->watch().query_notes(patience);
  }
  std::vector<int> ranks_ahead(Duration patience) override { return core_->ranks_ahead(patience); }
  std::optional<Error> failure() const override { return core_->failure(); }
  void fail(ErrorKind kind, int peer_rank, const std::string& cause) override {
    core_->raise(kind, peer_rank, cause);
  }
  void abort(const std::string& reason) override;

 private:
  // Collective: one collective. It has a number from begin() on. It consists of one or more
  // phases, each of which is carried out in chunks. All ranks make the same phases.
  struct Collective {
    Collective(const CallHeader& call, Duration timeout)
        : header(call),
          attempt{.doing = [this] { return describe(header); }, .deadline = Deadline(timeout)} {}
    Collective(const Collective&) = delete;
    Collective& operator=(const Collective&) = delete;

    CallHeader header;
    OperationContext attempt;
  };
  Result<void> run_reduce(CallHeader header, const ReduceJob& job, const CpuCallOptions& terms);
  Result<void> run(const CallHeader& header, ChunkedCall& call, Duration timeout);
  Result<void> begin(Collective& collective);
  enum class PhaseEnd {
    kDone,
    kMixed,  // nothing was done: the ranks' shortcuts differ
  };
  Result<PhaseEnd> run_phase(Collective& collective, ChunkedCall& call, std::size_t place = 0);
  Result<PhaseEnd> take_shortcut(Collective& collective, std::uint64_t shortcut, ChunkedCall& call,
                                 std::size_t place = 0);
  Result<PhaseEnd> only_if_whole(Collective& collective, Result<PhaseEnd> leg);
  // Way: how a call moves its bytes from rank to rank.
  struct Way {
    PullTrial* trial = nullptr;  // the trial that the call is part of; null: none
    std::size_t bytes = 0;
    bool pulls = false;
  };
  Way choose_way(PullTrial& trial, std::size_t bytes, std::size_t pieces, std::size_t in_all) const;
  Result<PhaseEnd> pull(Collective& collective, std::uint64_t shortcut, const Way& way,
                        PullJob job);
  static Result<void> done(const Result<PhaseEnd>& leg);
  PhaseEnd turn_back();
  bool every_node_folds(std::size_t bytes) const;
  std::optional<std::size_t> place_in_heap(const ReduceJob& job) const;
  Result<PhaseEnd> reduce_in_heap(Collective& collective, const ReduceJob& job, std::size_t place);
  Result<PhaseEnd> reduce_staged(Collective& collective, const ReduceJob& job);
  void take_tensor_back(std::size_t place, std::size_t bytes);
  void find_tensors();
  Result<void> gather_all(Collective& collective, ReadableBytes input, std::span<char> outputs);
  Result<PairSizes> agree_on_sizes(Collective& collective, std::span<const ReadableBytes> inputs,
                                   std::span<const WritableBytes> outputs);
  Result<PhaseEnd> take_steps(const CallHeader& header, ChunkedCall& call,
                              const OperationContext& attempt);
  TcpMesh::End work_in_tensors_of_others(ChunkedCall& call, const ChunkedCall::Chunk& chunk,
                                         TimePoint deadline);
  // Waits until all ranks are in the phase. Returns whether they have the same shortcut; in all
  // else they must agree.
  Result<bool> arrive(const CallHeader& header, ChunkedCall& call, const ChunkPipeline& pipeline,
                      const OperationContext& attempt);
  Result<bool> agree_on_node(const CallHeader& header, const OperationContext& attempt);
  Result<bool> agree_over_nodes(const CallHeader& header, ChunkedCall& call,
                                const ChunkPipeline& pipeline, const OperationContext& attempt);
  template <class CallOf>
  Result<bool> compare(const CallHeader& header, CallOf call_of, const OperationContext& attempt);
  TcpMesh::End exchange_arrivals(ChunkedCall& call, TimePoint deadline);

  std::unique_ptr<GroupCore> core_;
  const GroupTopology& here_;
  SharedProgress& progress_;
  Mailbox mailbox_;
  std::shared_ptr<SharedHeap> heap_;
  ReduceScratch scratch_;
  std::vector<char*> tensors_;      // of the collective in the heap, by local index
  std::uint64_t sequence_ = 0;      // of the last collective
  std::uint64_t round_ = 0;         // of the last phase
  std::uint64_t next_arrival_ = 1;  // a tick
  std::size_t next_chunk_ = 0;      // a number, see ChunkedCall::Chunk
  bool pulls_ = true;               // cleared when it turns out that not all ranks can pull
  PullTrial gather_trial_;
  PullTrial exchange_trial_;  // for all_to_all
};

}  // namespace ddprun
