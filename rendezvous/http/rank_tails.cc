#include "rendezvous/http/rank_tails.h"

#include <boost/asio/steady_timer.hpp>
#include <map>
#include <optional>
#include <utility>

#include "base/concat.h"
#include "rendezvous/http/paced_wake.h"
#include "rendezvous/http/tail_events.h"

namespace ddprun {

struct RankTails::State {
  boost::asio::io_context& io;
  const RankTailsEvents events;
  std::map<AgentConnectionId, Tail*> tails = {};  // of those that have asked
};

class RankTails::Tail final : public HttpFeed, public std::enable_shared_from_this<Tail> {
 public:
  Tail(const std::shared_ptr<State>& all, UserRequest request)
      : all_(all), request_(std::move(request)), pause_(all->io) {}

  ~Tail() override { leave(); }

  void begin(std::function<void()> wake) override {
    const auto all = all_.lock();
    if (!all) return;
    wake_.emplace(all->io, std::move(wake));
    if (const std::string why = why_full(*all); !why.empty()) {
      events_.refuse(why);
      return wake_->notify();
    }
    id_ = all->events.next_id();
    all->tails[*id_] = this;
    all->events.ask(*id_, request_);
  }

  std::string take() override {
    std::string events = events_.events();
    is_read_ = events.empty();  // it is asked again when all was sent
    return events;
  }

  void take(const ServiceMessage& message, bool is_last) {
    events_.take(message, is_last);
    if (events_.is_ended()) leave();
    is_read_ = false;
    wake_->notify();
    rest();
  }

 private:
  // Ends the inquiry, if there is one.
  void leave() {
    const auto all = all_.lock();
    const auto id = std::exchange(id_, std::nullopt);
    if (!all || !id) return;
    all->tails.erase(*id);
    all->events.ended(*id);
  }

  std::string why_full(const State& all) const {
    std::size_t of_job = 0;
    for (const auto& [id, tail] : all.tails) of_job += tail->request_.job == request_.job ? 1 : 0;
    if (all.tails.size() < kMost && of_job < kOfJob) return {};
    return concat("too many pages show the output of a rank (at most ", kOfJob, " of a job and ",
                  kMost, " of all): close one, then open this rank again");
  }

  // After a pause, gets more if the browser has taken all.
  void rest() {
    if (!id_) return;
    if (std::exchange(is_resting_, true)) return;
    pause_.expires_after(kPause);
    pause_.async_wait([weak = weak_from_this()](const boost::system::error_code& error) {
      const auto self = weak.lock();
      const auto all = self ? self->all_.lock() : nullptr;
      if (error || !all) return;
      self->is_resting_ = false;
      if (!self->is_read_) return self->rest();
      if (self->id_) all->events.wants_more(*self->id_);
    });
  }

  const std::weak_ptr<State> all_;
  const UserRequest request_;
  TailEvents events_;
  boost::asio::steady_timer pause_;
  std::optional<PacedWake> wake_;
  std::optional<AgentConnectionId> id_;  // of the inquiry; nullopt: it has not begun, or has ended
  bool is_read_ = true;
  bool is_resting_ = false;
};

RankTails::RankTails(boost::asio::io_context& io, RankTailsEvents events)
    : state_(std::make_shared<State>(State{io, std::move(events)})) {}
RankTails::~RankTails() = default;

std::shared_ptr<HttpFeed> RankTails::open(const std::string& job, Rank rank,
                                          const std::string& by) {
  return std::make_shared<Tail>(state_, UserRequest{.what = UserRequest::What::kLogs,
                                                    .number = 1,
                                                    .job = job,
                                                    .by = by,
                                                    .rank = rank,
                                                    .lines = kLines,
                                                    .follow = true});
}

bool RankTails::contains(AgentConnectionId id) const {
  return state_ && state_->tails.contains(id);
}

void RankTails::take(AgentConnectionId id, const ServiceMessage& message, bool is_last) {
  const auto tail = state_->tails.at(id)->shared_from_this();  // it may be closed meanwhile
  tail->take(message, is_last);
}

void RankTails::close() { state_.reset(); }

}  // namespace ddprun
