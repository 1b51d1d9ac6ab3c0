#include "rendezvous/persistence/etcd_state.h"

#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <utility>

#include "base/assert.h"
#include "base/fnv1a.h"
#include "rendezvous/persistence/state_codec.h"

namespace ddprun {

class EtcdState::Impl : public std::enable_shared_from_this<Impl> {
 public:
  Impl(boost::asio::io_context& io, EtcdStateOptions options, Rng rng, EtcdStateEvents events)
      : io_(io),
        options_(std::move(options)),
        events_(std::move(events)),
        client_(std::in_place, io, options_.client),
        leadership_(std::move(rng), BootClock::now()),
        timer_(io),
        watch_timer_(io),
        keys_timer_(io) {
    if (options_.keys_live > Duration(0)) keys_lease_ = lease_of(options_.prefix);
  }

  void start() {
    boost::asio::post(io_, [self = shared_from_this()] {
      if (!self->is_over_) self->take(self->leadership_.start(BootClock::now()));
    });
  }

  // Callbacks end here, although handlers may still hold this object.
  void end() {
    is_over_ = true;
    timer_.cancel();
    watch_timer_.cancel();
    keys_timer_.cancel();
    client_.reset();
    events_ = {};
  }

  void keep(std::uint64_t number, const StateChange& change) {
    if (has_resigned_) return;
    DDPRUN_ASSERT(writes_.has_value(), "only the leader has changes");
    const Result<void> kept = writes_->keep(number, to_entry(change));
    if (!kept) too_large_ = kept.error();
    // The changes of one turn of the event loop share a write.
    if (std::exchange(will_write_, true)) return;
    boost::asio::post(io_, [self = shared_from_this()] {
      self->will_write_ = false;
      if (self->is_over_) return;
      if (const auto error = std::exchange(self->too_large_, std::nullopt)) self->stuck(*error);
      self->write();
    });
  }

  bool serves() const { return leadership_.serves(BootClock::now()); }
  void set_tls(TlsContextPtr tls) { client_->set_tls(std::move(tls)); }

  void leader_process_gone() {
    boost::asio::post(io_, [self = shared_from_this()] {
      if (!self->is_over_) self->take(self->leadership_.leader_process_gone(BootClock::now()));
    });
  }

  void resign(std::function<void()> then) {
    on_resigned_ = std::move(then);
    has_resigned_ = true;
    boost::asio::post(io_, [self = shared_from_this()] {
      if (self->is_over_) return;
      self->writes_.reset();
      const LeadershipActions actions = self->leadership_.resign(BootClock::now());
      const bool revokes = !actions.empty();
      self->take(actions);
      if (!revokes) self->resigned();
    });
  }

 private:
  void arm() {
    const std::optional<TimePoint> due = leadership_.deadline();
    if (is_over_ || !due) {
      timer_.cancel();
      return;
    }
    timer_.expires_after(std::max(Duration(0), *due - BootClock::now()));
    timer_.async_wait([self = shared_from_this()](boost::system::error_code error) {
      if (!error && !self->is_over_) self->take(self->leadership_.tick(BootClock::now()));
    });
  }

  void take(const LeadershipActions& actions) {
    for (const LeadershipAction& action : actions) {
      std::visit([this](const auto& one) { perform(one); }, action);
      if (is_over_) return;
    }
    arm();
  }

  // Sends a request of Leadership. `answered` gets the decoded answer.
  template <class Decoded>
  void ask(std::uint64_t number, const EtcdRequest& request, Duration allowed,
           Result<Decoded> (*decode)(std::string_view),
           LeadershipActions (Leadership::*answered)(std::uint64_t, const Decoded&, TimePoint)) {
    client_->call(request, allowed,
                  [self = shared_from_this(), this, number, decode, answered](const auto& body) {
                    const Result<Decoded> decoded =
                        body ? decode(*body) : Result<Decoded>(body.error());
                    note(decoded);
                    const TimePoint now = BootClock::now();
                    take(decoded ? (leadership_.*answered)(number, *decoded, now)
                                 : leadership_.failed(number, now));
                  });
  }

  void perform(const GrantLease& action) {
    client_->call(
        grant_lease(action.lease), Leadership::kTryTime,
        [self = shared_from_this(), this, number = action.number](const Result<std::string>& body) {
          const auto granted = body ? decode_granted(*body) : Result<GrantedLease>(body.error());
          note(granted);
          const TimePoint now = BootClock::now();
          take(granted ? leadership_.granted(number, granted->lease, granted->time, now)
                       : leadership_.failed(number, now));
        });
  }

  void perform(const KeepLease& action) {
    client_->call(
        keep_lease(action.lease), Leadership::kTryTime,
        [self = shared_from_this(), this, number = action.number](const Result<std::string>& body) {
          const auto kept = body ? decode_kept(*body) : Result<bool>(body.error());
          note(kept);
          if (kept) take(leadership_.kept(number, *kept, BootClock::now()));
        });
  }

  void perform(const CreateLeaderKey& action) {
    ask(action.number, create_leader_key(options_.prefix, action.lease, options_.address),
        Leadership::kTryTime, decode_leader_key, &Leadership::campaigned);
  }

  void perform(const ReadState& action) {
    client_->call(
        read_state(options_.prefix), Leadership::kReadTime,
        [self = shared_from_this(), this, number = action.number](const Result<std::string>& body) {
          Result<EtcdContents> contents =
              body ? decode_contents(options_.prefix, *body) : Result<EtcdContents>(body.error());
          note(contents);
          const TimePoint now = BootClock::now();
          if (!contents) return take(leadership_.failed(number, now));
          contents_ = std::move(*contents);
          take(leadership_.state_read(number, now));
        });
  }

  void perform(const RevokeLease& action) {
    client_->call(revoke_lease(action.lease), Leadership::kTryTime,
                  [self = shared_from_this()](const Result<std::string>&) { self->resigned(); });
  }

  void perform(const WatchLeaderKey& action) { watch(action.from); }

  // from: 0 means the present.
  void watch(EtcdRevision from) {
    watched_from_ = from;
    client_->watch(
        watch_leader_key(options_.prefix, from), Leadership::kTryTime,
        [self = shared_from_this()](std::string_view line) {
          const Result<WatchEvent> event = decode_watch_line(line);
          if (event && *event == WatchEvent::kDeleted)
            self->take(self->leadership_.leader_key_gone(BootClock::now()));
          // The revision was compacted, or the member has no leader.
          // Or the user's token is not valid any more.
          if (event && *event == WatchEvent::kEnded) {
            self->client_->log_in_again();
            self->watch_again(0);
          }
        },
        [self = shared_from_this(), from](const Error&) { self->watch_again(from); });
  }

  // A standby also checks the key without a watch. A leader has only its watch.
  void watch_again(EtcdRevision from) {
    if (is_over_) return;
    watch_timer_.expires_after(kWatchPause);
    watch_timer_.async_wait(
        [self = shared_from_this(), from, was = watched_from_](boost::system::error_code error) {
          if (!error && !self->is_over_ && self->watched_from_ == was) self->watch(from);
        });
  }

  void perform(const Lead& action) {
    writes_.emplace(action.term, contents_.chain_modified);
    durable_ = 0;
    is_stuck_ = false;
    failing_since_.reset();
    are_keys_renewed_ = false;
    renew_keys();
    events_.leads(action.term, std::exchange(contents_, {}).image);
  }
  void perform(const Suspend&) { events_.suspended(); }
  void perform(const Resume&) { events_.resumed(); }
  void perform(const StepDown& action) {
    writes_.reset();
    keys_timer_.cancel();
    events_.stepped_down(action.why);
  }
  void perform(const Follow& action) { events_.follows(action.leader, action.term); }

  // --- the lease of the keys --------------------------------------------------------------------

  // Returns the number of the lease, which all services of the prefix use.
  static EtcdLease lease_of(const std::string& prefix) {
    return static_cast<EtcdLease>(fnv1a(prefix) >> 1 | 1);
  }

  // Lets the keys live for their time from now on. Without their lease, nothing can be written.
  void renew_keys() {
    if (keys_lease_ == 0 || std::exchange(is_renewing_, true)) return;
    client_->call(keep_lease(keys_lease_), Leadership::kTryTime,
                  [self = shared_from_this()](const Result<std::string>& body) {
                    const auto kept = body ? decode_kept(*body) : Result<bool>(body.error());
                    self->note(kept);
                    if (!kept || *kept) return self->keys_renewed(kept.has_value());
                    self->grant_keys();
                  });
  }

  void grant_keys() {
    client_->call(grant_lease(options_.keys_live, keys_lease_), Leadership::kTryTime,
                  [self = shared_from_this()](const Result<std::string>& body) {
                    self->keys_renewed(body.has_value());
                  });
  }

  void keys_renewed(bool was_well) {
    is_renewing_ = false;
    if (!writes_) return;
    if (was_well) are_keys_renewed_ = true;
    keys_timer_.expires_after(was_well ? options_.keys_live / 24 : Duration(kRetryPause));
    keys_timer_.async_wait([self = shared_from_this()](boost::system::error_code error) {
      if (!error && !self->is_over_ && self->writes_) self->renew_keys();
    });
    if (was_well) write();
  }

  // Sends the next write, if none is under way.
  void write() {
    if (keys_lease_ != 0 && !are_keys_renewed_) return;
    const std::optional<FencedWrite> next = writes_ ? writes_->next() : std::nullopt;
    if (!next) return;
    const TimePoint begun = BootClock::now();
    client_->call(put_fenced(options_.prefix, *next, keys_lease_), Leadership::kTryTime,
                  [self = shared_from_this(), this, begun,
                   term = next->term](const Result<std::string>& body) {
                    const auto written =
                        body ? decode_written(*body)
                             : Result<std::variant<EtcdRevision, FenceState>>(body.error());
                    note(written);
                    if (!writes_ || leadership_.term() != term) return;
                    if (!written) {
                      writes_->unknown();
                      if (written.error().kind == ErrorKind::kNotFound) {
                        are_keys_renewed_ = false;
                        renew_keys();
                      }
                      if (!failing_since_) failing_since_ = begun;
                      if (BootClock::now() - *failing_since_ >= kStuckAfter) stuck(written.error());
                    } else if (const auto* revision = std::get_if<EtcdRevision>(&*written)) {
                      writes_->written(*revision);
                    } else {
                      writes_->refused(std::get<FenceState>(*written));
                    }
                    if (writes_->is_lost()) return take(leadership_.fenced(BootClock::now()));
                    if (written) unstuck();
                    const std::uint64_t durable = writes_->durable();
                    if (std::exchange(durable_, durable) != durable) events_.store.durable(durable);
                    if (!is_over_) write_again(!written);
                  });
  }

  void stuck(const Error& why) {
    if (!std::exchange(is_stuck_, true)) events_.store.failed(why);
  }

  void unstuck() {
    failing_since_.reset();
    if (writes_->has_too_large() || !std::exchange(is_stuck_, false)) return;
    events_.store.well();
  }

  void write_again(bool has_failed) {
    if (!has_failed) return write();
    // A member that refuses connections does so at once.
    const auto pause = std::make_shared<boost::asio::steady_timer>(io_, kRetryPause);
    pause->async_wait([self = shared_from_this(), pause](boost::system::error_code error) {
      if (!error && !self->is_over_) self->write();
    });
  }

  // Reports the beginning and the end of trouble with etcd.
  template <class Answer>
  void note(const Result<Answer>& answer) {
    const bool is_trouble = !answer && answer.error().kind != ErrorKind::kNotFound;
    if (std::exchange(has_trouble_, is_trouble) == is_trouble) return;
    events_.trouble(is_trouble ? std::optional(answer.error()) : std::nullopt);
  }

  void resigned() {
    if (const auto then = std::exchange(on_resigned_, nullptr)) then();
  }

  static constexpr Duration kRetryPause = std::chrono::milliseconds(20);
  static constexpr Duration kWatchPause = std::chrono::milliseconds(100);

  boost::asio::io_context& io_;
  EtcdStateOptions options_;
  EtcdStateEvents events_;
  std::optional<EtcdClient> client_;
  Leadership leadership_;
  std::optional<FencedWrites> writes_;  // while this service leads
  std::uint64_t durable_ = 0;           // as it was reported
  EtcdContents contents_;               // read, until Lead
  boost::asio::steady_timer timer_;
  boost::asio::steady_timer watch_timer_;
  boost::asio::steady_timer keys_timer_;
  EtcdLease keys_lease_ = 0;  // 0: the keys stay
  bool are_keys_renewed_ = false;
  bool is_renewing_ = false;
  EtcdRevision watched_from_ = 0;  // of the newest watch
  std::function<void()> on_resigned_;
  std::optional<TimePoint> failing_since_;  // writes
  bool is_stuck_ = false;                   // `failed` was called, and `well` not yet
  std::optional<Error> too_large_;          // why the newest change was not taken
  bool has_resigned_ = false;
  bool will_write_ = false;
  bool has_trouble_ = false;
  bool is_over_ = false;
};

EtcdState::EtcdState(boost::asio::io_context& io, EtcdStateOptions options, Rng rng,
                     EtcdStateEvents events)
    : impl_(std::make_shared<Impl>(io, std::move(options), std::move(rng), std::move(events))) {
  impl_->start();
}

EtcdState::~EtcdState() { impl_->end(); }

void EtcdState::keep(std::uint64_t number, const StateChange& change) {
  impl_->keep(number, change);
}

bool EtcdState::serves() const { return impl_->serves(); }

void EtcdState::leader_process_gone() { impl_->leader_process_gone(); }

void EtcdState::resign(std::function<void()> then) { impl_->resign(std::move(then)); }

void EtcdState::set_tls(TlsContextPtr tls) { impl_->set_tls(std::move(tls)); }

}  // namespace ddprun
