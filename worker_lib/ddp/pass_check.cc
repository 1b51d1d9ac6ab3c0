#include "worker_lib/ddp/pass_check.h"

#include <nlohmann/json.hpp>

#include "base/concat.h"
#include "base/joined.h"
#include "worker_lib/collective/rank_names.h"
#include "worker_lib/ddp/gradient_buckets.h"
#include "worker_lib/group/work_state.h"
#include "worker_lib/util/error_bridge.h"

namespace ddprun {
namespace {

constexpr std::size_t kMaxNames = 10;  // in one message

// A backend may report an aborted call as complete, because with NCCL a wait only makes the
// stream wait. Then the words are still this rank's own.
void expect_reduced(const PassWords& words) {
  const std::optional<int> rank = words.missing_rank();
  if (!rank) return;
  refuse_pass(concat("its last all_reduce ended without rank ", *rank,
                     ": gradients may not be averaged; do not use them"),
              DistError::Kind::kStopped, *rank);
}

[[noreturn]] void report_missing(const PassCheck& pass) {
  const auto all = pass.group.all_gather_object(pass.missing, pass.timeout);
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < all.size(); ++rank) {
    const auto theirs = all[rank].get<std::vector<std::string>>();
    if (theirs.empty()) continue;
    texts.push_back(
        concat("rank ", rank, " got no gradient for ", joined_up_to(theirs, kMaxNames)));
  }
  const char* why =
      pass.is_nested ? ". It is a backward pass within another one, and no output of the wrapped "
                       "module's forward is part of that one"
      : pass.is_static_graph
          ? ". The graph is not static"
          : ". Each parameter that required grad at construction must take part in every "
            "synchronised pass, unless the option 'find_unused_parameters' is on";
  refuse_pass(joined(texts, "; ") + why);
}

// Every rank has the same words, so all take the same branch here.
void expect_complete(const PassCheck& pass, const PassWords& words, Looking how) {
  std::vector<int> lacking;
  for (int rank = 0; rank < pass.group.size(); ++rank) {
    if (words.code(rank) == PassCode::kGivenUp)
      refuse_pass(concat("an exception left it on rank ", rank, ", whose gradients are missing"),
                  DistError::Kind::kInvalidArgument, rank);
    if (words.code(rank) == PassCode::kMissing) lacking.push_back(rank);
  }
  if (lacking.empty()) return;
  if (how == Looking::kTogether) report_missing(pass);
  refuse_pass(name_ranks(lacking) + " got no gradient for some parameter; the next pass names it");
}

std::vector<ChosenEpochs> gather_epochs(const PassCheck& pass) {
  auto mine = nlohmann::json::array();
  for (const ChosenEpoch& one : pass.epochs) mine.push_back({one.epoch, one.sampler});
  std::vector<ChosenEpochs> result;
  for (const nlohmann::json& theirs : pass.group.all_gather_object(mine, pass.timeout)) {
    ChosenEpochs& of_rank = result.emplace_back();
    for (const nlohmann::json& one : theirs) of_rank.push_back({one.at(0), one.at(1)});
  }
  return result;
}

// Every rank has the same words here, too. Words that differ are only a suspicion: if ranks have
// several samplers, their choices may agree nevertheless.
void expect_same_epoch(const PassCheck& pass, const PassWords& words, Looking how) {
  if (!words.do_epochs_differ()) return;
  if (how == Looking::kAlone) {
    if (!words.do_epochs_differ(PassWords::Ranks::kSure)) return;  // the next pass decides
    refuse_pass(
        "the ranks are in different epochs by DistributedSampler::set_epoch(); the next pass names "
        "them");
  }
  const auto ranks = ranks_by_epoch(gather_epochs(pass));
  if (ranks.empty()) return;
  std::vector<std::string> texts;
  for (const auto& [epoch, of_epoch] : ranks)
    texts.push_back(
        concat(name_ranks(of_epoch), of_epoch.size() == 1 ? " is" : " are", " in epoch ", epoch));
  refuse_pass(joined(texts) +
              " by DistributedSampler::set_epoch(); the ranks have had different numbers of "
              "batches in an epoch, or one has left its loop early");
}

}  // namespace

void refuse_pass(const std::string& what, DistError::Kind kind, int peer_rank) {
  refuse(concat(kBackwardPass, ": ", what), kind, peer_rank);
}

PassWords PassCheck::look_at(const torch::Tensor& words, Looking how) const {
  // With NCCL, a wait only makes the stream wait, and an abort may end a call when its last
  // elements, the words, are already reduced. The words have been read now, so each call has
  // ended.
  for (const Work& work : works) work.wait(kTimeToFail);
  std::vector<double> sums = GradientBuckets::numbers_in(words);
  for (double& sum : sums) sum *= scale;
  PassWords result(std::move(sums), group.size());
  expect_reduced(result);
  expect_complete(*this, result, how);
  expect_same_epoch(*this, result, how);
  return result;
}

}  // namespace ddprun
