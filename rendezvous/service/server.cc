#include "rendezvous/service/server.h"

#include <algorithm>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <map>
#include <variant>
#include <vector>

#include "base/random_id.h"
#include "rendezvous/http/entry.h"
#include "rendezvous/http/page_forms.h"
#include "rendezvous/http/process_figures.h"
#include "rendezvous/membership/core/outbox.h"
#include "rendezvous/net/blocking_socket.h"
#include "rendezvous/net/limited_log.h"
#include "rendezvous/net/tcp_acceptor.h"
#include "rendezvous/persistence/state_writer.h"
#include "rendezvous/protocol/control_codec.h"
#include "rendezvous/service/etcd_role.h"
#include "rendezvous/service/pages.h"
#include "rendezvous/service/pending_connections.h"
#include "rendezvous/service/session.h"
#include "rendezvous/store/server.h"

namespace ddprun {

namespace asio = boost::asio;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

// LocalAgent: an agent in this process.
struct LocalAgent {
  std::shared_ptr<std::function<void(const ServiceMessage&)>> deliver;
  std::function<RankReport()> ranks;  // null: it has none
};

// PageCall: a request of a page that is not answered yet. To the table it is a connection.
struct PageCall {
  PageCall(asio::io_context& io, HttpFinish to) : finish(std::move(to)), patience(io) {}

  HttpFinish finish;
  asio::steady_timer patience;
  PageReply reply;
};

// Stacks come within 30 s of a node.
constexpr Duration kPagePatience = std::chrono::seconds(45);
constexpr std::size_t kPageCalls = 8;

// How long an agent that comes to a standby waits for the election of a leader. It is less than an
// agent waits for an answer.
constexpr Duration kElectionTime = std::chrono::seconds(1);

// Returns the options with the calendar of this host's clock as it is now. It may have been set
// since the start of the process.
ServiceOptions with_calendar(ServiceOptions options) {
  options.calendar =
      std::chrono::system_clock::now().time_since_epoch() - BootClock::now().time_since_epoch();
  return options;
}

// Server: the Asio shell around JobTable. Its pending operations keep it alive; stop() ends them.
class Server final : public RendezvousServer, public std::enable_shared_from_this<Server> {
 public:
  Server(asio::io_context& io, Logger& log, ServiceOptions options, UniqueFd listener,
         std::optional<KeptState> kept)
      : io_(io),
        log_(log),
        quiet_(options.embedded),
        table_(with_calendar(std::move(options)), kept ? kept->state : ServiceState(),
               BootClock::now()),
        timer_(io),
        lag_timer_(io),
        http_(
            std::in_place,
            [this](const HttpRequest& request) { return pages_.page(request, view()); },
            HttpLimits{},
            [this] {
              note_watcher({});
              return ServicePages::edition(table_);
            }),
        drain_timer_(io),
        election_timer_(io) {
    pending_ = PendingConnections::make(
        io, unauthenticated_log_, counters_, table_.options().hello_timeout,
        table_.options().handshake_turns,
        PendingConnectionsEvents{
            .agent = [this](const SessionPtr& session,
                            const AgentMessage& message) { adopt(session, message); },
            .http = [this](const TransportPtr& wire,
                           const std::string& first_bytes) { http_->adopt(wire, first_bytes); },
            .is_own =
                [this](const Hello& hello) {
                  const ServiceOptions& own = table_.options();
                  return !own.only_job.empty() && own.is_own_of(hello);
                },
            .sent = [this] { check_drained(); }});
    if (kept) {
      table_.note_durable(0);
      writer_ = std::make_unique<StateWriter>(io, std::move(kept->directory), store_events());
    }
    if (listener.valid()) {
      acceptor_.emplace(
          io, std::move(listener),
          TcpAcceptorEvents{
              .client =
                  [this](tcp::socket socket, const SocketAddress& peer) {
                    pending_->welcome(std::move(socket), peer, next_id());
                  },
              .cannot_accept =
                  [this](const std::string& why) { unauthenticated_log_.warning(why); }});
    }
  }

  void keep_in_etcd(EtcdStateOptions etcd, std::optional<Duration> looks_on) override {
    auto role = std::make_unique<EtcdRole>(
        io_, log_, std::move(etcd),
        EtcdRoleEvents{.store = store_events(),
                       .leads = [this](const ServiceState& past) { lead(past); },
                       .resumed = [this] { resume(); },
                       .stepped_down = [this](const std::string& why) { step_down(why); },
                       .has_answer = [this] { answer_waiting_agents(); }},
        looks_on);
    role_ = role.get();
    writer_ = std::move(role);
  }

  void stand_for_leader() override {
    if (role_) role_->stand();
  }

  void start() override {
    if (acceptor_) {
      acceptor_->open();
      perform(table_.pulse(BootClock::now()));
      measure_lag();
    }
    arm();  // jobs from before a restart of the service already have deadlines
  }

  void stop() {
    stopped_ = true;
    acceptor_.reset();
    http_.reset();
    timer_.cancel();
    lag_timer_.cancel();
    drain_timer_.cancel();
    election_timer_.cancel();
    await_leader_.clear();
    role_ = nullptr;
    writer_.reset();
    pending_->close();
    for (auto& [id, session] : sessions_) session->wire->close();
    sessions_.clear();
    page_calls_.clear();
    locals_.clear();
    shown_store_ = nullptr;
  }

  // --- agents in this process -----------------------------------------------------------------

  AgentConnectionId attach(std::function<void(const ServiceMessage&)> deliver,
                           std::function<RankReport()> ranks) override {
    using Deliver = std::function<void(const ServiceMessage&)>;
    const AgentConnectionId id = next_id();
    locals_[id] = {std::make_shared<Deliver>(std::move(deliver)), std::move(ranks)};
    return id;
  }

  void receive(AgentConnectionId id, const AgentMessage& message) override {
    note_change(message);
    perform(
        table_.receive({.connection = id, .local = true, .service_address = {}, .peer_address = {}},
                       message, BootClock::now()));
  }

  void detach(AgentConnectionId id) override {
    locals_.erase(id);
    gone(id);
  }

  void share_port_with(StoreServer* store) override { pending_->store = store; }
  void show_store(const StoreServer* store) override { shown_store_ = store; }

  void set_keys(Keyring keys) override {
    pending_->keys = std::move(keys);
    http_->close_readers();
  }
  void set_munge(std::shared_ptr<const Munge> munge) override {
    pending_->munge.emplace(io_, std::move(munge));
  }
  void set_tls(TlsContextPtr tls) override { pending_->tls = std::move(tls); }
  void set_etcd_tls(TlsContextPtr tls) override {
    if (role_) role_->set_tls(std::move(tls));
  }

  void when_idle(std::function<void()> then) override {
    ends_soon_ = true;
    when_idle_ = std::move(then);
    check_idle();
  }

  void drain(std::function<void()> then) override {
    draining_ = true;
    pending_->drain();
    drained_ = std::move(then);
    acceptor_.reset();
    timer_.cancel();
    after(drain_timer_, kDiskTime, [this] {
      log_.warning(
          std::string(role_ ? "etcd" : "the disk") +
          " takes too long: decisions that are not durable are lost, and no agent knows of them");
      say_farewell();
    });
    if (is_durable()) say_farewell();
  }

  const JobTable& jobs() const override { return table_; }

 private:
  // Calls `then` after that time, unless the timer is cancelled or the service is stopped.
  template <class Then>
  void after(asio::steady_timer& timer, Duration time, Then then) {
    timer.expires_after(time);
    timer.async_wait([self = shared_from_this(), then = std::move(then)](error_code error) {
      if (!error && !self->stopped_) then();
    });
  }

  AgentConnectionId next_id() { return AgentConnectionId(++last_id_); }

  // Takes over a connection with its first message.
  void adopt(const SessionPtr& session, const AgentMessage& message) {
    session->on_sent = [this, id = session->id](const Result<std::size_t>& sent) {
      on_sent(id, sent);
    };
    sessions_[session->id] = session;
    const UserRequest* request = std::get_if<UserRequest>(&message);
    if (request && request->follow) enable_keepalive(session->wire->socket().native_handle());
    take_message(session, message);
    take_frames(session);
  }

  void read(const SessionPtr& session) {
    session->wire->read(
        [self = shared_from_this(), session](const Result<std::string_view>& bytes) {
          if (self->stopped_ || !self->sessions_.contains(session->id)) return;
          if (!bytes && bytes.error().kind == ErrorKind::kProtocol) {
            return self->drop(session, bytes.error().message());
          }
          if (!bytes) return self->drop(session, "");
          if (self->draining_) return self->read(session);  // reads and ignores the bytes
          self->take(session, *bytes);
        });
  }

  void take(const SessionPtr& session, std::string_view bytes) {
    if (session->close_when_sent) return read(session);  // ignores the bytes
    counters_.bytes_received += bytes.size();
    session->frames.append(bytes);
    take_frames(session);
  }

  void take_frames(const SessionPtr& session) {
    while (sessions_.contains(session->id) && !session->close_when_sent) {
      const auto frame = session->frames.next();
      if (!frame) return drop(session, frame.error().message());
      if (!*frame) break;
      if (const Result<void> taken = take_frame(session, **frame); !taken) {
        return drop(session, taken.error().message());
      }
    }
    if (sessions_.contains(session->id)) read(session);
  }

  Result<void> take_frame(const SessionPtr& session, std::string_view frame) {
    const Result<AgentMessage> message = decode<AgentMessage>(frame);
    if (!message) {
      // A peer of a later version may send messages that this version does not know.
      const bool is_later = message.error().kind == ErrorKind::kUnsupported;
      if (is_later && table_.has_agent(session->id)) return {};
      return message.error();
    }
    if (std::holds_alternative<UserRequest>(*message) && !table_.has_agent(session->id)) {
      return Error{.kind = ErrorKind::kProtocol, .cause = "only agents may send several requests"};
    }
    take_message(session, *message);
    return {};
  }

  void take_message(const SessionPtr& session, const AgentMessage& message) {
    if (role_ && !role_->leads()) {
      role_->look();
      const Hello* hello = std::get_if<Hello>(&message);
      const ServiceTerm served = hello && hello->assignment ? hello->assignment->term : 0;
      if (role_->has_to_wait(served) && !await_leader_.contains(session->id)) {
        let_wait(session, message);
      } else {
        send_away(session, role_->standby_answer());
      }
      return;
    }
    receive_from(session, message);
  }

  void receive_from(const SessionPtr& session, const AgentMessage& message) {
    note_change(message);
    perform(table_.receive({.connection = session->id,
                            .local = false,
                            .service_address = session->service_address,
                            .peer_address = session->peer_host,
                            .user = session->user},
                           message, BootClock::now()));
  }

  // Keeps the first message of an agent until a service leads, for kElectionTime at most. If many
  // agents were sent away, they would come again several times a second, and delay the election.
  void let_wait(const SessionPtr& session, const AgentMessage& message) {
    if (await_leader_.empty())
      after(election_timer_, kElectionTime, [this] { answer_waiting_agents(); });
    await_leader_.emplace(session->id, message);
  }

  void answer_waiting_agents() {
    election_timer_.cancel();
    for (const auto& [id, message] : std::exchange(await_leader_, {})) {
      const auto found = sessions_.find(id);
      if (found == sessions_.end() || found->second->close_when_sent) continue;
      const SessionPtr session = found->second;
      if (role_->leads()) {
        receive_from(session, message);
      } else {
        send_away(session, role_->standby_answer());
      }
    }
  }

  // --- HTTP pages -------------------------------------------------------------------------------

  ServiceView view() {
    return {.jobs = table_,
            .keys = pending_->keys,
            .role = role_,
            .has_tls = pending_->tls != nullptr,
            .is_draining = draining_,
            .ends_soon = ends_soon_,
            .note_watcher = [this] { note_watcher({}); },
            .figures = [this] { return figures(); },
            .ask = [this](const UserRequest& request,
                          const HttpFinish& finish) { ask_for_page(request, finish); }};
  }

  Figures figures() const {
    Figures figures{.service = counters_, .http = http_->counters(), .store = std::nullopt};
    figures.service.connections = pending_->size() + sessions_.size();
    if (shown_store_) figures.store = shown_store_->counters();
    figures.process = process_figures();
    figures.state_writable = !table_.why_closed().has_value();
    if (role_) figures.etcd = role_->counters();
    return figures;
  }

  // Asks the table as a command does that has a connection of its own.
  void ask_for_page(const UserRequest& request, const HttpFinish& finish) {
    if (draining_) return finish(text_page("the service is stopping", 503));
    if (page_calls_.size() >= kPageCalls) {
      return finish(text_page(std::string(kTooManyOrders), 503));
    }
    const AgentConnectionId id = next_id();
    PageCall& call = page_calls_.try_emplace(id, io_, finish).first->second;
    after(call.patience, kPagePatience, [this, id] {
      end_page_call(id, text_page("no answer within " + to_text(kPagePatience) +
                                      ": it may still be carried out",
                                  504));
    });
    perform(table_.receive(
        {.connection = id, .local = false, .service_address = {}, .peer_address = {}},
        AgentMessage(request), BootClock::now()));
  }

  void take_for_page(AgentConnectionId id, const ServiceMessage& message) {
    const Answer* const answer = std::get_if<Answer>(&message);
    if (!answer) return end_page_call(id, text_page("the service has no answer now", 503));
    if (const auto page = page_calls_.at(id).reply.take(*answer)) return end_page_call(id, *page);
    asio::post(io_, [self = shared_from_this(), id] {
      if (self->stopped_ || self->draining_ || !self->page_calls_.contains(id)) return;
      self->perform(self->table_.all_sent(id, BootClock::now()));
    });
  }

  // The table is told later, because it may be in the middle of an event.
  void end_page_call(AgentConnectionId id, const HttpPage& page) {
    const auto call = page_calls_.extract(id);
    if (!call) return;
    asio::post(io_, [self = shared_from_this(), id] {
      if (!self->stopped_) self->gone(id);
    });
    call.mapped().finish(page);
  }

  // Tells the open pages of a change. A heartbeat without ranks changes nothing that they show.
  void note_change(const AgentMessage& message) {
    const Heartbeat* const beat = std::get_if<Heartbeat>(&message);
    if (!beat || !beat->ranks.rows.empty()) http_->changed();
  }

  // Notes that a person looks at this job, or at all jobs if `job` is empty. Agents in this process
  // are asked for their ranks at once, the others with the answers to their heartbeats.
  void note_watcher(const std::string& job) {
    const TimePoint now = BootClock::now();
    table_.watched(job, now);
    for (const auto& [id, local] : locals_) {
      if (local.ranks) table_.take_ranks(id, local.ranks(), now);
    }
  }

  void measure_lag() {
    after(lag_timer_, table_.pulse_period(), [this] {
      counters_.lag.note(std::chrono::steady_clock::now() - lag_timer_.expiry());
      if (!draining_) perform(table_.pulse(BootClock::now()));
      const bool shows_locals = !locals_.empty() && table_.is_watched({}, BootClock::now());
      if (shows_locals) http_->changed();
      measure_lag();
    });
  }

  // --- output of the table ----------------------------------------------------------------------

  void perform(ServiceOutput out) {
    hold_if_suspended();
    if (!out.log.empty() || !out.changes.empty()) http_->changed();
    for (const std::string& line : out.log) {
      if (!quiet_) log_.info(line);
    }
    for (const std::string& line : out.provoked) {
      if (!quiet_) unauthenticated_log_.warning(line);
    }
    for (const ServiceOutput::Change& change : out.changes) {
      last_change_ = change.number;
      if (writer_) writer_->keep(change.number, change.what);
    }
    for (ServiceOutput::Send& send : out.sends) {
      if (!writer_) {
        deliver(send);
      } else if (auto now = outbox_.put(std::move(send))) {
        deliver(*now);
      }
    }
    for (const ServiceOutput::Page& page : out.pages) show(page);
    for (const AgentConnectionId id : out.closes) close_soon(id);
    flush_all();
    arm();
  }

  void close_soon(AgentConnectionId id) {
    const auto remote = sessions_.find(id);
    if (remote == sessions_.end()) return;
    remote->second->close_when_sent = true;
    flush_soon(remote->second);
  }

  // Answers a request for the status page. The reader has already proved its identity where
  // that is required.
  void show(const ServiceOutput::Page& page) {
    note_watcher(page.job);
    Answer answer{.number = page.number, .done = true};
    answer.page =
        status_page(table_, this_moment(), {.only = page.job, .max_bytes = kMaxPageBytes});
    ServiceOutput::Send send{
        .connection = page.connection, .message = std::move(answer), .last = page.last};
    deliver(send);
  }

  void deliver(ServiceOutput::Send& send) {
    if (role_) set_term(send.message, role_->term());
    if (const auto local = locals_.find(send.connection); local != locals_.end()) {
      asio::post(io_, [self = shared_from_this(), id = send.connection,
                       deliver = local->second.deliver, message = std::move(send.message)] {
        if (self->locals_.contains(id)) (*deliver)(message);
      });
    } else if (const auto remote = sessions_.find(send.connection); remote != sessions_.end()) {
      say(remote->second, send.message);
      if (send.last) close_soon(send.connection);
    } else if (page_calls_.contains(send.connection)) {
      take_for_page(send.connection, send.message);
    }
  }

  // --- durable state, and the end of the service ----------------------------------------------

  StateStoreEvents store_events() {
    return {.durable = [this](std::uint64_t number) { on_durable(number); },
            .failed = [this](const Error& why) { close(why); },
            .well = [this] { open(); }};
  }

  bool is_durable() const { return !writer_ || outbox_.durable() == last_change_; }

  void on_durable(std::uint64_t number) {
    hold_if_suspended();
    table_.note_durable(number);
    for (ServiceOutput::Send& send : outbox_.take_durable(number)) deliver(send);
    flush_all();
    if (draining_ && is_durable()) say_farewell();
  }

  // Stops admission, because the state cannot be written.
  void close(const Error& why) {
    const std::string reason =
        "no new jobs or agents are admitted until the state can be written: " + why.message();
    table_.close_admission(reason);
    trouble_.error(reason);
    ServiceOutput out = table_.withdraw_after(outbox_.durable(), reason);
    for (const AgentConnectionId id : out.closes) outbox_.forget(id);
    perform(std::move(out));
  }

  void open() {
    table_.close_admission(std::nullopt);
    log_.info("the state can be written again: new jobs and agents are admitted");
  }

  void say_farewell() {
    if (std::exchange(said_farewell_, true)) return;
    drain_timer_.cancel();
    perform(table_.farewell("the service is stopping"));
    http_->show_last();
    check_drained();
  }

  void check_drained() {
    if (!said_farewell_ || !drained_) return;
    const auto has_sent_all = [](const auto& entry) { return entry.second->has_sent_all(); };
    if (!pending_->has_sent_all() || !std::ranges::all_of(sessions_, has_sent_all)) return;
    if (role_) return role_->resign(std::exchange(drained_, nullptr));
    asio::post(io_, std::exchange(drained_, nullptr));
  }

  // --- leading and standing by ------------------------------------------------------------------

  // A service may be suspended by its own clock before any timer has noticed it.
  void hold_if_suspended() {
    if (role_) outbox_.hold(role_->leads() && !role_->serves());
  }

  // Begins a term, or the time without one.
  void use(JobTable table) {
    table_ = std::move(table);
    table_.note_durable(0);
    outbox_ = Outbox();
    last_change_ = 0;
    timer_.cancel();
    armed_.reset();
    perform(table_.pulse(BootClock::now()));
  }

  void lead(const ServiceState& past) {
    ServiceOptions options = with_calendar(table_.options());
    options.earlier_run_lasts = Leadership::kLease;
    const TimePoint now = BootClock::now();
    if (options.earlier_agents_until) options.earlier_agents_until = now + options.times.patience();
    if (!past.service_id.empty()) options.earlier_agents_until.reset();
    if (past.service_id.empty()) options.service_id = random_hex(8);  // nothing is known of others
    use(JobTable(std::move(options), past, now));
    answer_waiting_agents();
  }

  void resume() {
    outbox_.hold(false);
    on_durable(outbox_.durable());
  }

  void step_down(const std::string& why) {
    use(JobTable(table_.options()));
    http_->close_readers();
    while (!page_calls_.empty()) {
      end_page_call(page_calls_.begin()->first,
                    text_page("this service does not lead any more: load the page again", 503));
    }
    for (const auto& [id, session] : std::map(sessions_)) {
      send_away(session, Silence{"this service does not lead any more: " + why});
    }
  }

  // Sends an agent to another service.
  void send_away(const SessionPtr& session, const Silence& answer) {
    session->close_when_sent = true;
    say(session, ServiceMessage(answer));
    flush_all();
  }

  // drop(), and say(), which continues after it, take the session by value. Their argument may be
  // the map's own pointer to the session, which drop() erases.
  //
  // The message leaves with the next flush_all(), together with all other unsent messages.
  void say(SessionPtr session, const ServiceMessage& message) {
    if (const Result<void> said = session->say(message); !said) {
      return drop(session, said.error().message());
    }
    if (session->unsent_bytes() > kMaxUnsentBytes) {
      return drop(session, "it does not read its messages");
    }
    flush_soon(session);
  }

  void flush_soon(const SessionPtr& session) {
    if (!std::exchange(session->is_unflushed, true)) unflushed_.push_back(session);
  }

  void flush_all() {
    for (const SessionPtr& session : std::exchange(unflushed_, {})) {
      session->is_unflushed = false;
      if (sessions_.contains(session->id)) session->flush();
    }
    check_drained();
  }

  void on_sent(AgentConnectionId id, const Result<std::size_t>& sent) {
    counters_.bytes_sent += sent ? *sent : 0;
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return;
    if (!sent || found->second->close_when_sent) return drop(found->second, "");
    if (table_.is_reader(id)) go_on_reading(id);
    check_drained();
  }

  // Continues reading later, not from within the send that has just finished.
  void go_on_reading(AgentConnectionId id) {
    asio::post(io_, [self = shared_from_this(), id] {
      const auto found = self->sessions_.find(id);
      if (self->stopped_ || self->draining_ || found == self->sessions_.end()) return;
      if (!found->second->has_sent_all()) return;
      self->perform(self->table_.all_sent(id, BootClock::now()));
    });
  }

  // Closes the session. `why` becomes a warning. It is empty if the peer has disconnected, or has
  // got its last message.
  void drop(SessionPtr session, const std::string& why) {
    if (!why.empty()) session->warn(unauthenticated_log_, why);
    session->wire->close();
    sessions_.erase(session->id);
    gone(session->id);
  }

  void gone(AgentConnectionId id) {
    outbox_.forget(id);
    await_leader_.erase(id);
    http_->changed();
    perform(table_.disconnected(id, BootClock::now()));
    check_idle();
    check_drained();
  }

  void check_idle() {
    if (!when_idle_ || !table_.is_idle()) return;
    http_->show_last();
    asio::post(io_, std::exchange(when_idle_, nullptr));
  }

  // Sets the timer to the table's deadline. A heartbeat only moves deadlines to later times.
  // So an earlier alarm stays set; when it fires, it is set again.
  void arm() {
    const std::optional<TimePoint> due = table_.deadline();
    if (draining_ || !due || (armed_ && *armed_ <= *due)) return;
    armed_ = *due;
    after(timer_, std::max(Duration(0), *due - BootClock::now()), [this] {
      if (draining_) return;
      armed_.reset();
      perform(table_.tick(BootClock::now()));
    });
  }

  asio::io_context& io_;
  Logger& log_;
  bool quiet_;  // an embedded service does not log, because the agents themselves report
  JobTable table_;
  asio::steady_timer timer_;
  std::optional<TimePoint> armed_;
  std::optional<TcpAcceptor> acceptor_;
  std::uint64_t last_id_ = 0;  // of connections
  std::map<AgentConnectionId, SessionPtr> sessions_;
  std::vector<SessionPtr> unflushed_;  // sessions with messages from this turn of the event loop
  std::shared_ptr<PendingConnections> pending_;
  std::map<AgentConnectionId, AgentMessage> await_leader_;  // what they said, by session
  std::map<AgentConnectionId, LocalAgent> locals_;
  std::map<AgentConnectionId, PageCall> page_calls_;
  const StoreServer* shown_store_ = nullptr;
  asio::steady_timer lag_timer_;
  ServiceCounters counters_;
  ServicePages pages_;
  std::optional<HttpEntry> http_;
  std::function<void()> when_idle_;
  bool ends_soon_ = false;
  std::unique_ptr<StateStore> writer_;  // null: nothing is kept
  EtcdRole* role_ = nullptr;            // writer_, if it keeps the state in etcd
  std::uint64_t last_change_ = 0;
  Outbox outbox_;
  LimitedLog trouble_{log_, 5, std::chrono::minutes(1)};
  LimitedLog unauthenticated_log_{log_, 10, std::chrono::seconds(10)};
  asio::steady_timer drain_timer_;
  asio::steady_timer election_timer_;  // the end of await_leader_'s wait
  std::function<void()> drained_;
  bool draining_ = false;
  bool said_farewell_ = false;
  bool stopped_ = false;
};

}  // namespace

std::shared_ptr<RendezvousServer> RendezvousServer::make(asio::io_context& io, Logger& log,
                                                         ServiceOptions options, UniqueFd listener,
                                                         std::optional<KeptState> kept) {
  const auto server =
      std::make_shared<Server>(io, log, std::move(options), std::move(listener), std::move(kept));
  return {server.get(), [server](RendezvousServer*) { server->stop(); }};
}

}  // namespace ddprun
