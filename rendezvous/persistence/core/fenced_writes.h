// FencedWrites: writes the changes of one term to etcd, in order, each at most once, and only while
// the term lasts.
//
// Owner: the leader's thread. Pure: the owner performs the transactions and reports their outcome.
//
// Each transaction compares two keys before it writes:
//   - the leader key's create revision with the term, so a former leader can write nothing;
//   - the chain key's modification revision with that of the last write. Each write replaces the
//     chain key, so writes of one term form a chain, too. Without this, a request that was given up
//     and arrives late could put an old value over a newer one.
// One transaction is under way at a time. Changes that come meanwhile share the next one. If
// its outcome is not known, it is repeated as it was: at most one of the tries succeeds. The
// chain key's value names the transaction, so a refusal tells whether an earlier try has succeeded.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "rendezvous/membership/core/leadership.h"
#include "rendezvous/persistence/core/journal.h"

namespace ddprun {

// A transaction that succeeds only if both comparisons hold. Otherwise it changes nothing, and
// reads both keys.
struct FencedWrite {
  EtcdRevision term = 0;              // the leader key's create revision
  EtcdRevision last = 0;              // the chain key's modification revision; 0: it does not exist
  std::string chain_value;            // put into the chain key
  std::vector<JournalEntry> entries;  // put; removed if the value is empty
};

// The keys that a refused transaction, or a read, has found.
struct FenceState {
  EtcdRevision leader_created = 0;  // 0: there is no leader key
  EtcdRevision chain_modified = 0;  // 0: there is no chain key
  std::string chain_value;
};

class FencedWrites {
 public:
  // etcd takes 128 operations in a transaction, one of which puts the chain key, and 1.5 MiB.
  static constexpr std::size_t kMostEntries = 100;
  static constexpr std::size_t kMostBytes = 1 << 20;

  // chain_modified: as it was read with the state, after this service became the leader.
  FencedWrites(EtcdRevision term, EtcdRevision chain_modified)
      : term_(term), last_(chain_modified) {}

  // Queues a change. number: larger than that of any earlier change. Of changes of one key only the
  // newest is written. kInvalidArgument: it is larger than kMostBytes. It and later changes do not
  // become durable before a smaller change of its key has replaced it.
  Result<void> keep(std::uint64_t number, JournalEntry entry);

  // Returns the transaction to perform now; nullopt: one is under way, or there is nothing to
  // write.
  std::optional<FencedWrite> next();
  // Report the outcome of a transaction of next(), each once, by one of these three functions.
  //
  // Reports that the transaction was performed at this revision.
  void written(EtcdRevision revision);
  // Reports that its outcome is not known. next() returns it again.
  void unknown();
  // Reports that a comparison has failed, and what was found.
  void refused(const FenceState& found);

  // Returns the number up to which every change is durable.
  std::uint64_t durable() const { return durable_; }
  // Returns whether a change was too large and is not replaced yet.
  bool has_too_large() const { return !too_large_.empty(); }
  // Returns whether another service leads. Nothing is written any more.
  bool is_lost() const { return is_lost_; }

 private:
  struct Change {
    std::uint64_t first;  // the number of the oldest change of this key that is not durable
    std::uint64_t last;   // of the newest
    std::string value;
  };

  EtcdRevision term_;
  EtcdRevision last_;
  std::uint64_t writes_ = 0;
  std::uint64_t newest_ = 0;  // of all changes that were kept
  std::uint64_t durable_ = 0;
  std::map<std::string, Change> waiting_;                 // by key: what is not durable
  std::map<std::string, std::uint64_t> too_large_;        // by key: the oldest such change
  std::optional<FencedWrite> write_;                      // under way, or to be repeated
  std::map<std::string, std::uint64_t> written_numbers_;  // by key: the newest change in write_
  bool is_under_way_ = false;
  bool is_lost_ = false;
};

}  // namespace ddprun
