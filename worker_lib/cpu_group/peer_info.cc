#include "worker_lib/cpu_group/peer_info.h"

#include <algorithm>
#include <initializer_list>
#include <optional>
#include <sstream>
#include <string_view>

#include "base/deadline.h"
#include "base/parse_number.h"
#include "worker_lib/collective/rank_names.h"
#include "worker_lib/cpu_peers/node_bootstrap.h"
#include "worker_lib/store/result_store.h"

namespace ddprun {
namespace {

constexpr const char* kPeerInfoVersion = "ddprun-cpu-5";
constexpr const char* kRankOrder = "rank order";
constexpr const char* kAnyOrder = "any order";
// Begins the info of a rank that did not come. Another rank publishes it for all ranks that still
// wait.
constexpr std::string_view kAbsent = "ddprun-absent\n";
constexpr Duration kMoment = std::chrono::seconds(1);

std::string write_peer_info(const PeerInfo& info, const CpuGroupOptions& options) {
  std::string text = kPeerInfoVersion;
  for (const std::string& field : std::initializer_list<std::string>{
           info.listener, info.address.host, std::to_string(info.address.port), info.token,
           options.deterministic_across_layouts ? kRankOrder : kAnyOrder, options.checks,
           info.page_offset, info.machine, info.cpus, info.cache, info.node}) {
    text += "\n" + field;
  }
  return text;
}

// Returns an error if the rank has other options than this one.
Result<PeerInfo> read_peer_info(const std::string& text, int rank, const CpuGroupOptions& options) {
  if (text.starts_with(kAbsent)) {
    return Error{.kind = ErrorKind::kTimeout, .cause = text.substr(kAbsent.size())};
  }
  std::istringstream lines(text);
  std::string version;
  std::string port;
  std::string order;
  std::string checks;
  PeerInfo info;
  for (std::string* const field :
       {&version, &info.listener, &info.address.host, &port, &info.token, &order, &checks,
        &info.page_offset, &info.machine, &info.cpus, &info.cache}) {
    std::getline(lines, *field);
  }
  std::getline(lines, info.node, '\0');
  const std::optional<std::uint16_t> number = parse_number<std::uint16_t>(port);
  if (version != kPeerInfoVersion || !lines || !number) {
    return Error{.kind = ErrorKind::kProtocol,
                 .doing = "read the address of " + name_rank(rank),
                 .cause =
                     "it was not written by this version of ddprun (install the same one on "
                     "all hosts)"};
  }
  info.address.port = *number;
  const bool in_rank_order = options.deterministic_across_layouts;
  if ((order == kRankOrder) != in_rank_order) {
    return invalid_argument(name_rank(rank) + " wants " + (in_rank_order ? "no" : "the") +
                            " same bits for every layout, unlike this rank");
  }
  if (checks != options.checks) {
    const auto in_words = [](const std::string& what) { return what.empty() ? "nothing" : what; };
    return invalid_argument(name_rank(rank) + " looks for " + in_words(checks) +
                            ", this rank for " + in_words(options.checks) +
                            ": DDPRUN_VERIFY must say the same to all ranks");
  }
  return info;
}

class PeerInfoExchange {
 public:
  PeerInfoExchange(Store& store, const CpuGroupOptions& options)
      : store_(store), options_(options) {
    // All versions of ddprun use this key, so that a rank of another version is named at once.
    for (int rank = 0; rank < options.world_size; ++rank) {
      keys_.push_back(options.name + "/card/" + std::to_string(rank));
    }
  }

  Result<std::vector<std::string>> run(const std::string& info) {
    const Deadline deadline(options_.timeout);
    const Result<void> set = store_.set(keys_[options_.rank.value], info);
    if (!set) return set.error();
    Result<std::vector<std::string>> peers = await_peer_info(deadline);
    if (peers || peers.error().kind != ErrorKind::kTimeout) return peers;
    const std::vector<int> missing = missing_ranks();
    // The last info came just now, or another rank gave up a moment earlier.
    if (missing.empty()) return store_.multi_get(keys_, kMoment);
    const std::string who = name_ranks(missing);
    notify_others(missing, name_rank(options_.rank.value) + " gave up: " + who +
                               " did not come within " + to_text(deadline.allowed()));
    Error error = timeout_error("connect to the other ranks", who + " did not come", deadline);
    if (missing.size() == 1) error.peer_rank = missing[0];
    return error;
  }

 private:
  // Waits for all infos. If `check_members` can report a dead rank, waits in slices: the store does
  // not report it.
  Result<std::vector<std::string>> await_peer_info(const Deadline& deadline) {
    if (!options_.check_members) return store_.multi_get(keys_, deadline.remaining());
    for (;;) {
      Result<std::vector<std::string>> peers =
          store_.multi_get(keys_, std::min(deadline.remaining(), kGlanceAtOthers));
      if (peers || peers.error().kind != ErrorKind::kTimeout || deadline.passed()) return peers;
      if (std::optional<Error> lost = options_.check_members()) {
        return std::move(*lost).within("connect to the other ranks");
      }
    }
  }

  // Returns the ranks whose keys are not in the store.
  std::vector<int> missing_ranks() {
    std::vector<int> ranks;
    for (int rank = 0; rank < options_.world_size; ++rank) {
      const Result<bool> is_here = store_.check({keys_[rank]});
      if (!is_here) break;  // the next error of the store has the reason
      if (!*is_here) ranks.push_back(rank);
    }
    return ranks;
  }

  // Ranks that began later would wait for a world that cannot be complete any more. If the store
  // ends with this rank, they would not even learn why. If the store fails here, each rank finds
  // out by itself.
  void notify_others(const std::vector<int>& missing, const std::string& reason) {
    for (const int rank : missing) {
      if (!store_.set(keys_[rank], std::string(kAbsent) + reason)) return;
    }
  }

  ResultStore store_;
  const CpuGroupOptions& options_;
  std::vector<std::string> keys_;
};

}  // namespace

Result<std::vector<PeerInfo>> exchange_peer_info(Store& store, const CpuGroupOptions& options,
                                                 const PeerInfo& own) {
  const Result<std::vector<std::string>> texts =
      PeerInfoExchange(store, options).run(write_peer_info(own, options));
  if (!texts) return texts.error();
  std::vector<PeerInfo> peers;
  for (int rank = 0; rank < options.world_size; ++rank) {
    Result<PeerInfo> info = read_peer_info(texts->at(rank), rank, options);
    if (!info) return info.error();
    peers.push_back(std::move(*info));
  }
  return peers;
}

}  // namespace ddprun
