// The fields of the values that control messages and the journal share (json_fields.h), in the
// order in which they are read. Bounds are those of docs/reference/wire_protocol.md.
//
// Only codecs include this header. Pure; any thread.
#pragma once

#include <chrono>
#include <limits>

#include "rendezvous/protocol/core/rank_row.h"
#include "rendezvous/protocol/json_fields.h"

namespace ddprun {

inline constexpr std::int64_t kMaxInt64 = std::numeric_limits<std::int64_t>::max();
inline constexpr Bounds kPort{0, 65535};
inline constexpr Bounds kSignal{0, 64};
inline constexpr Bounds kCode{0, 65535};  // exit codes, signals, errno
inline constexpr Bounds kStep{std::numeric_limits<std::int64_t>::min(), kMaxInt64};
inline constexpr Bounds kFromZero{0, kMaxInt64};
// Zero would make an endless loop.
inline constexpr Duration kShortest = std::chrono::milliseconds(1);

template <class F>
void fields(F& at, Of<F, WorkerEnd>& end) {
  at.field("kind", end.kind, kEndKindWords);
  at.field("code", end.code, kCode);
  at.field("core_dumped", end.core_dumped);
  at.field("after_stop", end.after_stop);
  at.optional("unseen_ms", end.unseen > Duration(0), end.unseen);
  at.optional("on_request", end.on_request, end.on_request);
  at.optional("finished", end.finished, end.finished);
  at.optional("out_of_memory", end.out_of_memory != OutOfMemory::kNo, end.out_of_memory,
              kOutOfMemoryWords);
  at.field("rank", end.rank, kCount);
  at.field("local_rank", end.local_rank, kCount);
  at.field("node_rank", end.node_rank, kCount);
  at.field("host", end.host, Name());
  at.field("pid", end.pid, kCount);
  at.field("message", end.message, kMaxTextBytes);
  at.field("stderr_tail", end.stderr_tail);
  at.optional("frames", !end.frames.empty(), end.frames);
  at.optional("blames", end.blames >= 0, end.blames, kCount);
  at.optional("step", end.step, kStep);
  at.field("age_ms", end.age);
  bool is_unfit = end.loss == NodeLoss::kUnfit;
  at.optional("loss", end.kind == EndKind::kNodeLost && !is_unfit, end.loss, kNodeLossWords);
  // A field of its own, because older versions refuse a word of `loss` that they do not know.
  at.optional("unfit", is_unfit, is_unfit);
  if constexpr (F::kReads) {
    if (is_unfit) end.loss = NodeLoss::kUnfit;
    // Older versions do not write it. Their message tells.
    if (!at.has("loss") && end.kind == EndKind::kNodeLost && end.message.starts_with(kSilentFor))
      end.loss = NodeLoss::kLeaseExpired;
  }
}

template <class F>
void fields(F& at, Of<F, StepShares>& shares) {
  at.optional("data", shares.data);
  at.field("forward", shares.forward);
  at.field("backward", shares.backward);
  at.field("communication", shares.communication);
  at.field("checkpoint", shares.checkpoint);
}

template <class F>
void fields(F& at, Of<F, RankRow>& row) {
  at.field("rank", row.rank, kCount);
  at.field("local_rank", row.local_rank, kCount);
  at.optional("pid", row.pid > 0, row.pid, kCount);
  at.field("state", row.state, kMaxRankTextBytes);
  at.optional("step", row.step, kStep);
  at.optional("total_steps", row.total_steps, Bounds{1, kMaxInt64});
  at.optional("steps_per_second", row.steps_per_second);
  at.optional("collective", !row.collective.empty(), row.collective, kMaxRankTextBytes);
  at.optional("waiting_s", row.waiting_s);
  at.optional("cpu_percent", row.cpu_percent);
  at.optional("memory_bytes", row.memory_bytes, kFromZero);
  at.optional("gpu_percent", row.gpu_percent);
  at.optional("gpu_memory_bytes", row.gpu_memory_bytes, kFromZero);
  at.optional("gpu_own_memory_bytes", row.gpu_own_memory_bytes, kFromZero);
  at.optional("step_percent", row.step_percent);
  at.optional("slow", !row.slow.empty(), row.slow, kMaxRankTextBytes);
}

template <class F>
void fields(F& at, Of<F, JobSpec>& job) {
  at.field("id", job.id, Name());
  at.field("min_nodes", job.nodes.min, Bounds{1, kMaxNodes});
  at.field("max_nodes", job.nodes.max, Bounds{job.nodes.min, kMaxNodes});
  at.field("max_restarts", job.max_restarts, kCount);
  at.field("join_timeout_ms", job.join_timeout);
  at.field("last_call_ms", job.last_call);
  at.optional("on_join", true, job.on_join, kOnJoinWords);
  at.optional("node_failures", true, job.node_failures, Bounds{1, kMaxInt});
  auto& rules = job.restart_rules;
  at.optional("restart_window_ms", rules.window > Duration(0), rules.window);
  at.optional("no_restart_on", !rules.final_codes.empty(), rules.final_codes);
  at.optional("restart_on_progress", rules.on_progress, rules.on_progress);
}

template <class F>
void fields(F& at, Of<F, NodeSpec>& node) {
  at.field("agent_id", node.agent_id, Name{.may_be_empty = false});
  at.field("host", node.host, Name());
  at.field("slots", node.slots, Bounds{1, kMaxSlots});
  at.field("address", node.address, Name());
  at.optional("node_rank", node.node_rank, kAnyInt);
  at.optional("other_addresses", !node.other_addresses.empty(), node.other_addresses,
              Addresses{kMaxAddresses});
  at.optional("tells_output", node.supports_output, node.supports_output);
  at.optional("tells_flight", node.supports_flight, node.supports_flight);
  at.optional("tells_stacks", node.supports_stacks, node.supports_stacks);
  at.optional("tells_steps", node.supports_steps, node.supports_steps);
}

template <class F>
void fields(F& at, Of<F, JobTimes>& times) {
  for (const auto& [cause, word] : kTimeCauseWords)
    at.optional((std::string(word) + "_ms").c_str(), true, times[cause]);
  at.field("first_starting_ms", times.first_starting);
  at.field("first_loading_ms", times.first_loading);
  at.field("generations", times.generations, kCount);
  at.field("has_steps", times.has_steps);
}

template <class F>
void fields(F& at, Of<F, Verdict>& verdict) {
  at.field("success", verdict.success);
  at.field("exit_code", verdict.exit_code, kCode);
  at.field("headline", verdict.headline, kMaxTextBytes);
  at.optional("not_restarted_because", !verdict.not_restarted_because.empty(),
              verdict.not_restarted_because, kMaxTextBytes);
  at.field("ends", verdict.ends);
  at.optional("more_ends", true, verdict.more_ends, kCount);
  at.field("generation", verdict.generation);
  at.field("restarts_used", verdict.restarts_used, kCount);
  at.field("max_restarts", verdict.max_restarts, kCount);
  at.optional("seen", !verdict.seen.empty(), verdict.seen, Most{kMaxSeenLines, "lines"});
  at.optional("times", verdict.times);
  if constexpr (F::kReads) {
    // Older versions write no cause, and a newer one may have a cause that is not known here.
    std::string cause;
    at.optional("cause", true, cause, kMaxTextBytes);
    if (const auto known = parse_enum(kVerdictCauseWords, cause)) {
      verdict.cause = *known;
    } else if (!verdict.success) {
      infer_cause(verdict);
    }
  } else {
    at.optional("cause", !verdict.success, verdict.cause, kVerdictCauseWords);
  }
}

template <class F>
void fields(F& at, Of<F, Assignment>& assignment) {
  at.field("generation", assignment.generation);
  at.field("node_rank", assignment.node_rank, kCount);
  at.field("node_count", assignment.node_count, Bounds{1, kMaxNodes});
  at.field("first_rank", assignment.first_rank, kCount);
  at.field("world_size", assignment.world_size, Bounds{1, kMaxInt});
  at.field("store_host", assignment.store.host, Name());
  at.field("store_port", assignment.store.port, kPort);
  at.field("restart_count", assignment.restart_count, kCount);
  at.field("reason", assignment.reason, kMaxTextBytes);
  at.optional("peers", !assignment.peers.empty(), assignment.peers, Addresses{kMaxPeersBytes});
  at.optional("restarts_left", assignment.restarts_left, kCount);
  at.optional("failure", assignment.failure);
  at.optional("lease_ms", true, assignment.lease, kShortest);
  at.optional("term", assignment.term > 0, assignment.term, kFromZero);
}

}  // namespace ddprun
