#include "rendezvous/persistence/state_writer.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/task_queue.h"
#include "rendezvous/persistence/state_codec.h"

namespace ddprun {

namespace asio = boost::asio;

class StateWriter::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(asio::io_context& io, StateDirectory directory, StateStoreEvents events)
      : io_(io),
        directory_(std::move(directory)),
        path_(directory_->path()),
        events_(std::move(events)),
        retry_(io),
        hang_(io) {}

  void start() { begin(); }

  void keep(std::uint64_t number, const StateChange& change) {
    JournalEntry entry = to_entry(change);
    waiting_[std::move(entry.key)] = std::move(entry.value);
    number_ = number;
    if (std::exchange(due_, true) || writing_ || refused_) return;
    asio::post(io_, [self = shared_from_this()] { self->begin(); });
  }

  void stop() {
    stopped_ = true;
    retry_.cancel();
    hang_.cancel();
    disk_.await_idle(kLongestTimeout);
    directory_.reset();  // with its lock, even if handlers still hold this object
  }

 private:
  using Entries = std::map<std::string, std::string>;

  struct Outcome {
    Result<void> written;
    Result<void> room;
    Entries not_taken;  // still to be written, because the directory did not take them
  };

  static Outcome write(StateDirectory& directory, Entries entries) {
    std::vector<JournalEntry> batch;
    for (const auto& [key, value] : entries) batch.push_back({key, value});
    Outcome outcome{directory.write(batch), directory.ensure_room(), {}};
    const bool taken =
        outcome.written || outcome.written.error().kind != ErrorKind::kInvalidArgument;
    if (!taken) outcome.not_taken = std::move(entries);
    return outcome;
  }

  // Begins a write. With nothing to write it only checks for free disk space.
  void begin() {
    if (stopped_ || writing_) return;
    due_ = false;
    writing_ = true;
    if (Result<void> started = disk_.start(); !started) {
      return post_end(number_, {std::move(started), {}, std::exchange(waiting_, {})});
    }
    disk_.post([this, entries = std::exchange(waiting_, {}), number = number_,
                not_over = asio::make_work_guard(io_)]() mutable {
      post_end(number, write(*directory_, std::move(entries)));
    });
    watch();
  }

  // Any thread.
  void post_end(std::uint64_t number, Outcome outcome) {
    asio::post(io_, [self = shared_from_this(), number, outcome = std::move(outcome)]() mutable {
      self->ended(number, std::move(outcome));
    });
  }

  // Starts the timer that detects a hang of the write that has just begun.
  void watch() {
    hang_.expires_after(kHungAfter);
    hang_.async_wait([self = shared_from_this()](boost::system::error_code error) {
      if (error || !self->writing_ || self->hang_.expiry() > std::chrono::steady_clock::now()) {
        return;
      }
      self->hangs();
    });
  }

  void hangs() {
    if (std::exchange(is_failing_, true)) return;
    hung_ = true;
    events_.failed({.kind = ErrorKind::kTimeout,
                    .doing = "write to " + path_,
                    .cause = "the disk did not answer for " + to_text(kHungAfter)});
  }

  void ended(std::uint64_t number, Outcome outcome) {
    writing_ = false;
    if (stopped_) return;
    waiting_.merge(outcome.not_taken);  // keeps the newer change of the same key
    hang_.cancel();
    const bool hung = std::exchange(hung_, false);
    refused_ = !outcome.written;
    const bool trouble = refused_ || !outcome.room;
    if (trouble) {
      retry_.expires_after(kRetryPause);
      retry_.async_wait([self = shared_from_this()](boost::system::error_code error) {
        if (!error) self->begin();
      });
    }
    if (trouble && (!std::exchange(is_failing_, true) || hung)) {
      events_.failed(refused_ ? outcome.written.error() : outcome.room.error());
    }
    if (!refused_) events_.durable(number);
    if (!trouble && std::exchange(is_failing_, false)) events_.well();
    if (due_ && !refused_) begin();
  }

  asio::io_context& io_;
  std::optional<StateDirectory> directory_;  // belongs to the disk thread during a write
  const std::string path_;                   // of directory_
  StateStoreEvents events_;
  asio::steady_timer retry_;
  asio::steady_timer hang_;
  Entries waiting_;           // for the next write; the newest change of each key
  std::uint64_t number_ = 0;  // of the last change
  bool due_ = false;          // a change has been queued since the last write began
  bool writing_ = false;
  bool refused_ = false;     // the last write failed: nothing is written before the next retry
  bool is_failing_ = false;  // `failed` was called, and `well` not yet
  bool hung_ = false;        // `failed` was called only because the disk has not answered
  bool stopped_ = false;
  TaskQueue disk_{"ddprun-state", 1};
};

StateWriter::StateWriter(asio::io_context& io, StateDirectory directory, StateStoreEvents events)
    : impl_(std::make_shared<Impl>(io, std::move(directory), std::move(events))) {
  impl_->start();
}

StateWriter::~StateWriter() { impl_->stop(); }

void StateWriter::keep(std::uint64_t number, const StateChange& change) {
  impl_->keep(number, change);
}

}  // namespace ddprun
