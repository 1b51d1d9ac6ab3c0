#include "rendezvous/service/server.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>

#include "rendezvous/membership/core/outbox.h"
#include "rendezvous/net/limited_log.h"
#include "rendezvous/persistence/state_writer.h"
#include "rendezvous/service/etcd_role.h"
#include "rendezvous/service/pages.h"
#include "rendezvous/service/service_clients.h"
#include "rendezvous/service/standby.h"

namespace ddprun {

namespace asio = boost::asio;
using boost::system::error_code;

namespace {

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
        drain_timer_(io) {
    clients_ = std::make_shared<ServiceClients>(
        io, unauthenticated_log_, counters_, table_.options(), std::move(listener),
        ServiceClientsEvents{
            .message =
                [this](const SessionPtr& session, const AgentMessage& message) {
                  if (!standby_ || !standby_->take(session, message)) receive(session->id, message);
                },
            .has_agent = [this](AgentConnectionId id) { return table_.has_agent(id); },
            .is_own =
                [this](const Hello& hello) {
                  const ServiceOptions& own = table_.options();
                  return !own.only_job.empty() && own.is_own_of(hello);
                },
            .http = [this](const TransportPtr& wire,
                           const std::string& first_bytes) { pages_.adopt(wire, first_bytes); },
            .has_room =
                [this](AgentConnectionId id) {
                  if (table_.is_reader(id)) go_on_reading(id);
                },
            .follows =
                [this](AgentConnectionId id, const UserRequest& request) {
                  if (!is_draining()) ask(id, request);
                },
            .sent = [this] { check_drained(); },
            .gone = [this](AgentConnectionId id) { gone(id); }});
    if (kept) {
      table_.note_durable(0);
      writer_ = std::make_unique<StateWriter>(io, std::move(kept->directory), store_events());
    }
  }

  void keep_in_etcd(EtcdStateOptions etcd, std::optional<Duration> looks_on) override {
    auto role = std::make_unique<EtcdRole>(
        io_, log_, std::move(etcd),
        EtcdRoleEvents{.store = store_events(),
                       .leads = [this](const ServiceState& past) { lead(past); },
                       .resumed = [this] { on_durable(outbox_.durable()); },
                       .stepped_down = [this](const std::string& why) { step_down(why); },
                       .has_answer = [this] { standby_->answer(); }},
        looks_on);
    role_ = role.get();
    standby_ = std::make_shared<Standby>(
        io_, *role, clients_->sessions(),
        StandbyEvents{.receive = [this](AgentConnectionId id,
                                        const AgentMessage& message) { receive(id, message); },
                      .send_away = [this](AgentConnectionId id,
                                          const Silence& answer) { send_away(id, answer); }});
    writer_ = std::move(role);
  }

  void stand_for_leader() override {
    if (role_) role_->stand();
  }

  void start() override {
    if (clients_->start()) {
      perform(table_.pulse(BootClock::now()));
      measure_lag();
    }
    arm();  // jobs from before a restart of the service already have deadlines
  }

  void stop() {
    stage_ = Stage::kStopped;
    pages_.close();
    timer_.cancel();
    lag_timer_.cancel();
    drain_timer_.cancel();
    standby_.reset();
    role_ = nullptr;
    writer_.reset();
    clients_->close();
    shown_store_ = nullptr;
  }

  // --- agents in this process -----------------------------------------------------------------

  AgentConnectionId attach(std::function<void(const ServiceMessage&)> deliver,
                           std::function<RankReport()> ranks) override {
    return clients_->attach(std::move(deliver), std::move(ranks));
  }

  void receive(AgentConnectionId id, const AgentMessage& message) override {
    note_change(message);
    perform(table_.receive(clients_->origin_of(id), message, BootClock::now()));
  }

  void detach(AgentConnectionId id) override {
    clients_->detach(id);
    gone(id);
  }

  void share_port_with(StoreServer* store) override { clients_->pending().store = store; }
  void show_store(const StoreServer* store) override { shown_store_ = store; }

  void set_keys(Keyring keys) override {
    clients_->pending().keys = std::move(keys);
    pages_.close_readers();
  }
  void set_munge(std::shared_ptr<const Munge> munge) override {
    clients_->pending().munge.emplace(io_, std::move(munge));
  }
  void set_tls(TlsContextPtr tls) override { clients_->pending().tls = std::move(tls); }
  void set_etcd_tls(TlsContextPtr tls) override {
    if (role_) role_->set_tls(std::move(tls));
  }

  void when_idle(std::function<void()> then) override {
    ends_soon_ = true;
    when_idle_ = std::move(then);
    check_idle();
  }

  void drain(std::function<void()> then) override {
    stage_ = Stage::kDraining;
    clients_->drain();
    drained_ = std::move(then);
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
  // kFarewell: no decision follows, and all agents are told.
  enum class Stage { kServing, kDraining, kFarewell, kStopped };

  // Calls `then` after that time, unless the timer is cancelled or the service is stopped.
  template <class Then>
  void after(asio::steady_timer& timer, Duration time, Then then) {
    timer.expires_after(time);
    timer.async_wait([self = shared_from_this(), then = std::move(then)](error_code error) {
      if (!error && !self->is_stopped()) then();
    });
  }

  bool is_draining() const { return stage_ >= Stage::kDraining; }
  bool is_stopped() const { return stage_ == Stage::kStopped; }

  // --- HTTP pages -------------------------------------------------------------------------------

  ServiceView view() {
    ServiceCounters counters = counters_;
    counters.connections = clients_->connections();
    return {.jobs = table_,
            .counters = counters,
            .store = shown_store_,
            .keys = clients_->pending().keys,
            .role = role_,
            .has_tls = clients_->pending().tls != nullptr,
            .has_munge = clients_->pending().munge.has_value(),
            .is_draining = is_draining(),
            .ends_soon = ends_soon_,
            .note_watcher = [this] { note_watcher({}); },
            .ask =
                [this](const UserRequest& request, const HttpFinish& finish) {
                  if (is_draining()) return finish(text_page("the service is stopping", 503));
                  const bool is_look = request.what == UserRequest::What::kFlight;
                  if (const auto id = clients_->begin_page(is_look, finish)) ask(*id, request);
                },
            .follow = [this](const std::string& job, Rank rank,
                             const std::string& by) { return clients_->follow(job, rank, by); }};
  }

  // Asks the table for a browser, as a command does that has a connection of its own.
  void ask(AgentConnectionId id, const UserRequest& request) {
    perform(table_.receive(clients_->origin_of(id), request, BootClock::now()));
  }

  // Tells the open pages of a change. A heartbeat without ranks changes nothing that they show.
  void note_change(const AgentMessage& message) {
    const Heartbeat* const beat = std::get_if<Heartbeat>(&message);
    if (!beat || !beat->ranks.rows.empty()) pages_.changed();
  }

  // Notes that a person looks at this job, or at all jobs if `job` is empty. Agents in this process
  // are asked for their ranks at once, the others with the answers to their heartbeats.
  void note_watcher(const std::string& job) {
    const TimePoint now = BootClock::now();
    table_.watched(job, now);
    for (const auto& [id, ranks] : clients_->locals().ranks()) table_.take_ranks(id, ranks, now);
  }

  void measure_lag() {
    after(lag_timer_, table_.pulse_period(), [this] {
      counters_.lag.note(std::chrono::steady_clock::now() - lag_timer_.expiry());
      if (!is_draining()) perform(table_.pulse(BootClock::now()));
      const bool shows_locals =
          !clients_->locals().empty() && table_.is_watched({}, BootClock::now());
      if (shows_locals) pages_.changed();
      measure_lag();
    });
  }

  // --- output of the table ----------------------------------------------------------------------

  void perform(ServiceOutput out) {
    hold_if_suspended();
    if (!out.log.empty() || !out.changes.empty()) pages_.changed();
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
    for (const AgentConnectionId id : out.closes) clients_->sessions().close_when_sent(id);
    flush_all();
    arm();
  }

  // Answers a request for the status page. The reader has already proved its identity where
  // that is required.
  void show(const ServiceOutput::Page& page) {
    note_watcher(page.job);
    ServiceOutput::Send send{.connection = page.connection,
                             .message = ServicePages::answer(page, table_),
                             .last = page.last};
    deliver(send);
  }

  void deliver(ServiceOutput::Send& send) {
    if (role_) set_term(send.message, role_->term());
    clients_->deliver(send.connection, std::move(send.message), send.last);
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
    if (is_draining() && is_durable()) say_farewell();
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
    if (stage_ != Stage::kDraining) return;
    stage_ = Stage::kFarewell;
    drain_timer_.cancel();
    perform(table_.farewell("the service is stopping"));
    pages_.show_last();
    check_drained();
  }

  void check_drained() {
    if (stage_ != Stage::kFarewell || !drained_) return;
    if (!clients_->has_sent_all()) return;
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
    use(JobTable(options_of_term(with_calendar(table_.options()), past), past, BootClock::now()));
    standby_->answer();
  }

  void step_down(const std::string& why) {
    use(JobTable(table_.options()));
    pages_.close_readers();
    clients_->end_pages(text_page("this service does not lead any more: load the page again", 503));
    for (const AgentConnectionId id : clients_->sessions().ids()) {
      send_away(id, Silence{"this service does not lead any more: " + why});
    }
  }

  // Sends an agent to another service.
  void send_away(AgentConnectionId id, const Silence& answer) {
    clients_->deliver(id, answer, /*is_last=*/true);
    flush_all();
  }

  void flush_all() {
    clients_->flush();
    check_drained();
  }

  // Continues to send what is read later, not from within the send that has just finished.
  void go_on_reading(AgentConnectionId id) {
    asio::post(io_, [self = shared_from_this(), id] {
      if (self->is_draining()) return;
      if (!self->clients_->has_sent_all(id)) return;
      self->perform(self->table_.all_sent(id, BootClock::now()));
    });
  }

  void gone(AgentConnectionId id) {
    outbox_.forget(id);
    if (standby_) standby_->forget(id);
    pages_.changed();
    perform(table_.disconnected(id, BootClock::now()));
    check_idle();
    check_drained();
  }

  void check_idle() {
    if (!when_idle_ || !table_.is_idle()) return;
    pages_.show_last();
    asio::post(io_, std::exchange(when_idle_, nullptr));
  }

  // Sets the timer to the table's deadline. A heartbeat only moves deadlines to later times.
  // So an earlier alarm stays set; when it fires, it is set again.
  void arm() {
    const std::optional<TimePoint> due = table_.deadline();
    if (is_draining() || !due || (armed_ && *armed_ <= *due)) return;
    armed_ = *due;
    after(timer_, std::max(Duration(0), *due - BootClock::now()), [this] {
      if (is_draining()) return;
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
  std::shared_ptr<ServiceClients> clients_;
  std::shared_ptr<Standby> standby_;  // null: the state is not in etcd
  const StoreServer* shown_store_ = nullptr;
  asio::steady_timer lag_timer_;
  ServiceCounters counters_;
  ServicePages pages_{[this] { return view(); }};
  std::function<void()> when_idle_;
  bool ends_soon_ = false;
  std::unique_ptr<StateStore> writer_;  // null: nothing is kept
  EtcdRole* role_ = nullptr;            // writer_, if it keeps the state in etcd
  std::uint64_t last_change_ = 0;
  Outbox outbox_;
  LimitedLog trouble_{log_, 5, std::chrono::minutes(1)};
  LimitedLog unauthenticated_log_{log_, 10, std::chrono::seconds(10)};
  asio::steady_timer drain_timer_;
  std::function<void()> drained_;
  Stage stage_ = Stage::kServing;
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
