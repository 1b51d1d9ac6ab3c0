#include "rendezvous/membership/core/job_table.h"

#include <iterator>

#include "base/assert.h"
#include "base/concat.h"
#include "base/earlier.h"
#include "base/exit_codes.h"

namespace ddprun {
namespace {

// Returns whether the user may use the job. A caller without a proved user was admitted by
// other means, such as a key.
bool may_use(std::optional<UserId> owner, std::optional<UserId> user) {
  constexpr UserId kRoot{0};
  return !owner || !user || user == owner || user == kRoot;
}

Error not_his(const std::string& job, UserId owner, UserId user) {
  return invalid_argument(concat("job '", job, "' belongs to user ", owner,
                                 ", but according to munge this node's agent runs as user ", user));
}

std::string ended_and_forgotten(const std::string& job) {
  return "its job '" + job + "' has ended and is forgotten";
}

void move_times(JobState& state, Duration by) {
  for (GenerationRecord& one : state.generations) {
    for (std::optional<TimePoint>* const time : {&one.formed, &one.ended})
      if (*time) **time += by;
  }
  if (!state.books) return;
  BooksState& books = *state.books;
  books.since += by;
  if (books.left) *books.left += by;
  OpenGeneration& open = books.open;
  open.heard += by;
  for (std::optional<TimePoint>* const time : {&open.started, &open.first_step_at, &open.hung})
    if (*time) **time += by;
}

}  // namespace

Duration next_beat_in(Duration interval, TimePoint now) {
  const Duration grid = interval / ServiceOptions::kBeatTimes;
  const Duration past = now.time_since_epoch() % grid;
  return interval - past + (past > grid / 2 ? grid : Duration(0));
}

JobTable::JobTable(ServiceOptions options) : options_(std::move(options)) {
  DDPRUN_ASSERT(check_lease(options_.times), "an agent is heard several times in a lease");
}

JobTable::JobTable(ServiceOptions options, const ServiceState& past, TimePoint now)
    : JobTable(std::move(options)) {
  if (!past.service_id.empty()) options_.service_id = past.service_id;
  jobs_begun_ = past.jobs_begun;
  for (const auto& [id, kept] : past.jobs) {
    JobState state = kept.state;
    move_times(state, -options_.calendar);
    Job job{kept.instance, kept.former_instance,
            Membership(state, options_.times.lease, now, options_.earlier_run_lasts)};
    job.owner = kept.owner;
    job.recorded = job.mark();
    job.end_number = kept.end_number;
    jobs_ended_ = std::max(jobs_ended_, kept.end_number);
    if (kept.state.phase == JobPhase::kEnded) ended_.push_back(id);
    jobs_.emplace(id, std::move(job));
  }
  // Jobs without a number ended before numbers were recorded: they come first, by id.
  std::ranges::stable_sort(ended_, [this](const auto& a, const auto& b) {
    return jobs_.at(a).end_number < jobs_.at(b).end_number;
  });
}

ServiceOutput JobTable::receive(const Origin& origin, const AgentMessage& message, TimePoint now) {
  now_ = now;
  notice_time();
  const auto found = agents_.find(origin.connection);
  const bool is_agents = found != agents_.end();
  const Agent agent = is_agents ? found->second : Agent();
  const auto job = jobs_.find(agent.job);
  if (const Hello* first = std::get_if<Hello>(&message)) {
    hello(origin, *first);
  } else if (const UserRequest* asked = std::get_if<UserRequest>(&message)) {
    request(origin, *asked);
  } else if (!is_agents) {
    refuse(origin.connection, "the first message must be a hello");
  } else if (job == jobs_.end()) {
    refuse(origin.connection, ended_and_forgotten(agent.job));
  } else if (const AgentStatus* status = std::get_if<AgentStatus>(&message)) {
    forward(agent.job, job->second.membership.status(agent.agent_id, *status, now));
  } else if (const Heartbeat* heartbeat = std::get_if<Heartbeat>(&message)) {
    Membership& membership = job->second.membership;
    membership.heard(agent.agent_id, now);
    if (!heartbeat->ranks.rows.empty()) {
      membership.take_ranks(agent.agent_id, heartbeat->ranks, now);
    }
    const bool watched = is_watched(agent.job, now);
    out_.sends.push_back(
        {origin.connection, HeartbeatAck{.number = heartbeat->number,
                                         .next = next_beat_in(options_.times.heartbeat(), now),
                                         .is_watched = watched,
                                         .ranks_every = watched ? ranks_every() : Duration(0)}});
  } else if (const StepReport* steps = std::get_if<StepReport>(&message)) {
    forward(agent.job, job->second.membership.steps(agent.agent_id, *steps, now));
  } else if (const OutputPage* page = std::get_if<OutputPage>(&message)) {
    hand_on(inquiries_.handle_page(agent.agent_id, *page, now));
  } else if (const Leave* leave = std::get_if<Leave>(&message)) {
    forward(agent.job, job->second.membership.left(agent.agent_id, *leave, now));
    hand_on(inquiries_.agent_left(agent.agent_id, now));
  }
  return std::exchange(out_, {});
}

// Returns how often agents should send their ranks. Counts, at most once a second, those that came.
Duration JobTable::ranks_every() {
  using std::chrono::seconds;
  if (counted_ranks_at_ && now_ < *counted_ranks_at_ + seconds(1)) return ranks_every_;
  counted_ranks_at_ = now_;
  std::size_t ranks = 0;
  for (const auto& [id, job] : jobs_) {
    for (const auto& member : job.membership.members()) ranks += member.second.ranks.rows.size();
  }
  const seconds pause(ranks / kRanksEachSecond + (ranks % kRanksEachSecond > 0 ? 1 : 0));
  ranks_every_ = pause > seconds(1) ? std::min<Duration>(pause, kRanksLeastEvery) : Duration(0);
  return ranks_every_;
}

void JobTable::watched(const std::string& job, TimePoint now) {
  if (job.empty()) watched_at_ = now;
  if (const auto found = jobs_.find(job); found != jobs_.end()) found->second.watched_at = now;
}

void JobTable::take_ranks(AgentConnectionId connection, const RankReport& report, TimePoint now) {
  const auto agent = agents_.find(connection);
  if (agent == agents_.end()) return;
  const auto job = jobs_.find(agent->second.job);
  if (job != jobs_.end()) job->second.membership.take_ranks(agent->second.agent_id, report, now);
}

bool JobTable::is_watched(const std::string& job, TimePoint now) const {
  const auto is_recent = [now](std::optional<TimePoint> when) {
    return when && now - *when < kWatchedFor;
  };
  if (is_recent(watched_at_)) return true;
  const auto found = jobs_.find(job);
  return found != jobs_.end() && is_recent(found->second.watched_at);
}

void JobTable::hello(const Origin& origin, const Hello& hello) {
  const bool is_of_job = options_.is_own_of(hello);
  if (hello.protocol != kControlProtocol) {
    return refuse(origin.connection, other_protocol(hello.protocol, hello.version), is_of_job);
  }
  if (!is_of_job && !options_.only_job.empty()) {
    const std::string of =
        hello.job.id == options_.only_job ? " of the scheduler's job " + options_.cluster_job : "";
    return refuse(origin.connection,
                  "this service is only for job '" + options_.only_job + "'" + of);
  }
  if (!is_of_job && !hello.cluster_job.empty()) {
    return refuse(origin.connection, "this service is not only for job '" + hello.job.id + "'");
  }
  if (agents_.contains(origin.connection)) {
    return refuse(origin.connection, "a connection says hello once");
  }
  if (const std::optional<std::string> why = why_not_now(hello)) {
    out_.sends.push_back({origin.connection, Silence{*why}});
    out_.closes.push_back(origin.connection);
    return;
  }
  forget_old_verdicts();
  const Result<Job*> job = job_for(hello, origin.user);
  if (!job) return refuse(origin.connection, job.error().cause, is_of_job);
  if (!(*job)->owner) (*job)->owner = options_.owner ? options_.owner : origin.user;
  Membership& membership = (*job)->membership;
  if (const auto old = connections_.find(hello.node.agent_id); old != connections_.end()) {
    agents_.erase(old->second);
    out_.closes.push_back(old->second);
  }
  hand_on(inquiries_.agent_gone(hello.node.agent_id, now_));
  agents_[origin.connection] = {hello.job.id, hello.node.agent_id};
  connections_[hello.node.agent_id] = origin.connection;
  if (!origin.service_address.empty()) membership.set_service_address(origin.service_address);
  Hello seen = hello;  // its workers may also connect from the address of this connection
  if (!origin.peer_address.empty()) seen.node.other_addresses.push_back(origin.peer_address);
  MembershipOutput joined = membership.joined(seen, origin.local, now_);
  record(**job);
  out_.sends.push_back({origin.connection,
                        Welcome{.instance = (*job)->instance,
                                .heartbeat_interval = options_.times.heartbeat(),
                                .agent_patience = options_.times.patience(),
                                .embedded = options_.embedded,
                                .host = options_.host,
                                .own = is_of_job},
                        (*job)->first_change});
  forward(hello.job.id, std::move(joined));
  see_nodes(hello.job.id);
}

void JobTable::request(const Origin& origin, const UserRequest& request) {
  const auto agent = agents_.find(origin.connection);
  const bool is_agents = agent != agents_.end();
  const std::string id = is_agents ? agent->second.job : request.job;
  const auto found = jobs_.find(id);
  const auto refuse = [&](std::string why) {
    Answer answer{.number = request.number, .done = false, .text = std::move(why)};
    out_.sends.push_back({origin.connection, std::move(answer), 0, !is_agents});
  };
  const bool is_about_all = id.empty() && request.what == UserRequest::What::kStatus;
  if (found == jobs_.end() && !is_about_all) {
    return refuse("this service has no job '" + id + "'");
  }
  if (request.what == UserRequest::What::kStatus) {
    out_.pages.push_back({origin.connection, request.number, id, !is_agents});
    return;
  }
  Job& job = found->second;
  if (!is_agents && !may_use(job.owner, origin.user)) {
    return refuse(concat("job '", id, "' belongs to user ", *job.owner,
                         ", but according to munge you are user ", *origin.user));
  }
  if (is_answered_by_nodes(request.what)) {
    if (is_agents) return refuse("an agent cannot ask for output");
    if (inquiries_.is_reader(origin.connection)) {
      return refuse("this connection already reads the output of workers");
    }
    const Answer checked = *job.membership.request(request, now_).answer;
    if (!checked.done) return refuse(checked.text);
    if (!inquiries_.has_room(id)) {
      return refuse("too many commands read the output of workers: try again in a moment");
    }
    return hand_on(inquiries_.begin(origin.connection, id, request,
                                    nodes_of(job.membership, request.rank), now_));
  }
  const bool watches = !is_agents && request.what == UserRequest::What::kStop;
  if (watches && watchers_.size() >= kWatchersKept) {
    return refuse("too many commands wait for the end of a job: try again in a moment");
  }
  MembershipOutput begun = job.membership.request(request, now_);
  record(job);
  Answer said = std::move(*begun.answer);
  const bool waits = watches && said.done;
  if (waits) watchers_[origin.connection] = id;
  out_.sends.push_back({origin.connection, std::move(said), job.last_change, !is_agents && !waits});
  forward(id, std::move(begun));
}

// --- output of workers --------------------------------------------------------------------------

std::vector<OutputInquiries::Node> JobTable::nodes_of(const Membership& job,
                                                      std::optional<Rank> rank) const {
  std::vector<OutputInquiries::Node> nodes;
  for (const std::string& id : job.nodes_of(rank)) {
    const Membership::Member& member = job.members().at(id);
    nodes.push_back({id, member.node.host, member.connected, member.node.supports_output,
                     member.node.supports_flight, member.node.supports_stacks});
  }
  return nodes;
}

// Updates followed inquiries when other nodes may run the job's workers, or nodes may be back.
void JobTable::see_nodes(const std::string& job_id) {
  for (const OutputInquiries::Followed& one : inquiries_.followed(job_id)) {
    const Membership& job = jobs_.at(job_id).membership;
    hand_on(inquiries_.see(one.inquiry, nodes_of(job, one.rank), now_));
  }
}

void JobTable::hand_on(InquiryOutput&& from) {
  for (ToAgent& one : from.directives) send(std::move(one), 0);
  std::ranges::move(from.sends, std::back_inserter(out_.sends));
}

// Sends a message to an agent, if it is connected. `after`: as in ServiceOutput::Send.
void JobTable::send(ToAgent to, std::uint64_t after) {
  const auto connection = connections_.find(to.agent_id);
  if (connection == connections_.end()) return;
  out_.sends.push_back({connection->second, std::move(to.message), after});
}

ServiceOutput JobTable::all_sent(AgentConnectionId connection, TimePoint now) {
  now_ = now;
  hand_on(inquiries_.reader_has_room(connection, now));
  return std::exchange(out_, {});
}

// Sends the last message to the watchers of a job that is over.
void JobTable::notify_watchers(const std::string& job_id, const ServiceMessage& last_word,
                               std::uint64_t after) {
  std::erase_if(watchers_, [&](const auto& watcher) {
    if (watcher.second != job_id) return false;
    out_.sends.push_back({watcher.first, last_word, after, /*last=*/true});
    return true;
  });
}

// Returns why the agent must try again later; nullopt: it need not.
std::optional<std::string> JobTable::why_not_now(const Hello& hello) const {
  if (is_known(hello)) return std::nullopt;
  if (closed_) return closed_;
  const auto job = jobs_.find(hello.job.id);
  // The earlier run's agents may still come. When they have, or do not in time, it ends.
  if (job != jobs_.end() && hello.instance.empty() && job->second.first_change == 0 &&
      job->second.membership.landmark().ending) {
    return "an earlier run of job '" + hello.job.id + "' is being ended";
  }
  const bool unsafe_end = job != jobs_.end() &&
                          job->second.membership.phase() == JobPhase::kEnded &&
                          job->second.last_change > durable_;
  if (!unsafe_end) return std::nullopt;
  return "the end of another job '" + hello.job.id + "' is not on the disk yet";
}

bool JobTable::is_known(const Hello& hello) const {
  const auto job = jobs_.find(hello.job.id);
  if (job == jobs_.end() || hello.instance.empty()) return false;
  return hello.instance == job->second.instance || hello.instance == job->second.former_instance;
}

// Returns the job that the agent means: the current one of that id, or a new one. An agent
// that is refused changes nothing.
Result<JobTable::Job*> JobTable::job_for(const Hello& hello, std::optional<UserId> user) {
  const auto found = jobs_.find(hello.job.id);
  if (found == jobs_.end()) {
    const bool is_over = std::ranges::find(over_, hello.instance) != over_.end();
    if (!is_over) return begin_job(hello, user);
    return Error{.kind = ErrorKind::kStopped, .cause = ended_and_forgotten(hello.job.id)};
  }
  Job& job = found->second;
  const bool over = job.membership.phase() == JobPhase::kEnded;
  const bool of_it = is_known(hello);
  if (over && hello.instance.empty()) return begin_job(hello, user);
  if (!may_use(job.owner, user)) return not_his(hello.job.id, *job.owner, *user);
  // A newcomer began the job before the agents of the earlier run came back. No generation was
  // formed with it yet.
  const bool recalls = !of_it && has_past(hello) && !over && job.former_instance.empty() &&
                       job.membership.generation() < Generation(0) && can_recall(hello.instance);
  if (!hello.instance.empty() && !of_it && !recalls) {
    return Error{
        .kind = ErrorKind::kStopped,
        .cause = "its job '" + hello.job.id + "' has ended, and another job of that id runs now"};
  }
  if (std::optional<std::string> why_not = job.membership.refusal(hello)) {
    return invalid_argument(std::move(*why_not));
  }
  if (recalls) {
    recalled_.insert(hello.instance);
    job.former_instance = hello.instance;
    job.membership.expect_past(now_ + options_.times.lease);
  }
  return &job;
}

// Begins a new job. It replaces an ended job of the same id.
Result<JobTable::Job*> JobTable::begin_job(const Hello& hello, std::optional<UserId> user) {
  const std::string& id = hello.job.id;
  if (!may_use(options_.owner, user)) return not_his(id, *options_.owner, *user);
  Membership membership(hello.job, options_.times.lease, now_);
  if (std::optional<std::string> why_not = membership.refusal(hello)) {
    return invalid_argument(std::move(*why_not));
  }
  std::string instance = hello.instance;
  if (instance.empty()) instance = concat(options_.service_id, "-", ++jobs_begun_);
  if (has_past(hello)) {
    if (can_recall(hello.instance)) recalled_.insert(hello.instance);
    membership.expect_past(now_ + options_.times.lease);
  } else if (options_.earlier_agents_until && now_ < *options_.earlier_agents_until) {
    membership.expect_past(*options_.earlier_agents_until);
  }
  if (const auto ended = jobs_.find(id); ended != jobs_.end()) {
    // It was asked to save and to be started again, as a requeue does.
    if (ended->second.membership.verdict()->exit_code == to_int(ExitCode::kSaved))
      membership.continue_books(ended->second.membership);
    note_over(ended->second.instance);
    jobs_.erase(ended);
  }
  std::erase(ended_, id);
  return &jobs_.emplace(id, Job{std::move(instance), "", std::move(membership)}).first->second;
}

void JobTable::note_over(std::string instance) {
  over_.push_back(std::move(instance));
  if (over_.size() > kOverKept) over_.pop_front();
}

// Returns whether an earlier run of this service welcomed the agent.
bool JobTable::has_past(const Hello& hello) const {
  return !hello.instance.empty() && !hello.instance.starts_with(options_.service_id + "-");
}

// Returns false if that job was recalled before, so it has ended since.
bool JobTable::can_recall(const std::string& instance) const {
  return recalled_.size() < kRecallsKept && !recalled_.contains(instance);
}

void JobTable::refuse(AgentConnectionId connection, std::string reason, bool is_of_job) {
  ++counts_.refusals;
  out_.provoked.push_back("refused an agent: " + reason);
  out_.sends.push_back({connection, Refused{std::move(reason), is_of_job}});
  out_.closes.push_back(connection);
}

ServiceOutput JobTable::disconnected(AgentConnectionId connection, TimePoint now) {
  now_ = now;
  notice_time();
  watchers_.erase(connection);
  hand_on(inquiries_.reader_gone(connection));
  if (const auto found = agents_.find(connection); found != agents_.end()) {
    const Agent agent = found->second;
    agents_.erase(found);
    connections_.erase(agent.agent_id);
    const auto job = jobs_.find(agent.job);
    if (job != jobs_.end()) job->second.membership.disconnected(agent.agent_id);
    hand_on(inquiries_.agent_gone(agent.agent_id, now));
  }
  return std::exchange(out_, {});
}

ServiceOutput JobTable::pulse(TimePoint now) {
  now_ = now;
  if (!awake_) awake_ = now;
  notice_time();
  return std::exchange(out_, {});
}

// Notices that the process did not run. Half a patience is longer than the delays of a busy
// machine, and too short for a node to end its workers.
void JobTable::notice_time() {
  if (!awake_) return;
  const Duration gap = now_ - *std::exchange(awake_, now_);
  if (gap <= options_.times.patience() / 2) return;
  out_.log.push_back(
      concat("this service did not run for ", gap, ": no node counts as lost because of this"));
  for (auto& [id, job] : jobs_) job.membership.was_held_up(gap, now_);
}

ServiceOutput JobTable::tick(TimePoint now) {
  now_ = now;
  notice_time();
  for (auto& [id, job] : jobs_) {
    const std::optional<TimePoint> due = job.membership.deadline();
    if (due && *due <= now) forward(id, job.membership.tick(now));
  }
  hand_on(inquiries_.tick(now));
  forget_deserted_jobs();
  forget_old_verdicts();
  return std::exchange(out_, {});
}

std::optional<TimePoint> JobTable::deadline() const {
  std::optional<TimePoint> earliest = inquiries_.deadline();
  for (const auto& [id, job] : jobs_) {
    keep_earlier(earliest, job.membership.deadline());
    if (!job.membership.is_deserted()) continue;
    // Due at once, so that tick() sets deserted_since.
    keep_earlier(earliest,
                 job.deserted_since ? *job.deserted_since + options_.times.lease : TimePoint());
  }
  return earliest;
}

const Membership* JobTable::find(const std::string& job) const {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : &found->second.membership;
}

std::vector<const Membership*> JobTable::jobs() const {
  std::vector<const Membership*> all;
  for (const auto& [id, job] : jobs_) {
    if (job.membership.phase() != JobPhase::kEnded) all.push_back(&job.membership);
  }
  for (auto id = ended_.rbegin(); id != ended_.rend(); ++id) all.push_back(find(*id));
  return all;
}

ServiceOutput JobTable::withdraw_after(std::uint64_t after, const std::string& why) {
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    const auto job = it++;
    if (job->second.first_change <= after) continue;
    for (const auto& [connection, agent] : std::map(agents_)) {
      if (agent.job != job->first) continue;
      out_.sends.push_back({connection, Silence{why}});
      out_.closes.push_back(connection);
      connections_.erase(agent.agent_id);
      agents_.erase(connection);
    }
    notify_watchers(job->first, Silence{why}, 0);
    hand_on(inquiries_.job_gone(job->first, Silence{why}));
    out_.changes.push_back({++changes_, JobForgotten{job->first}});
    std::erase(ended_, job->first);
    jobs_.erase(job);
  }
  return std::exchange(out_, {});
}

ServiceOutput JobTable::farewell(const std::string& why) const {
  ServiceOutput out;
  for (const auto& [connection, agent] : agents_) out.sends.push_back({connection, Silence{why}});
  for (const AgentConnectionId reader : inquiries_.readers()) {
    out.sends.push_back({reader, Silence{why}});
  }
  return out;
}

// Records the job's state as a new change if it differs from the last recorded one.
void JobTable::record(Job& job) {
  const auto mark = job.mark();
  if (job.recorded == mark) return;
  const bool is_first = !job.recorded;
  if (is_first)
    out_.changes.push_back({++changes_, ServiceBegun{options_.service_id, jobs_begun_}});
  job.recorded = mark;
  job.last_change = ++changes_;
  if (is_first) job.first_change = changes_;
  const bool over = job.membership.phase() == JobPhase::kEnded;
  if (over && job.end_number == 0) job.end_number = ++jobs_ended_;
  JobState state = job.membership.state(now_);
  move_times(state, options_.calendar);
  out_.changes.push_back({changes_, JobChanged{{.instance = job.instance,
                                                .former_instance = job.former_instance,
                                                .end_number = job.end_number,
                                                .owner = job.owner,
                                                .state = std::move(state)}}});
}

void JobTable::forward(const std::string& job_id, MembershipOutput&& from) {
  Job& job = jobs_.at(job_id);
  record(job);
  for (ToAgent& one : from.directives) send(std::move(one), job.last_change);
  for (ToAgent& one : from.pass_ons) send(std::move(one), 0);
  std::ranges::move(from.log, std::back_inserter(out_.log));
  counts_.generations_formed += static_cast<std::uint64_t>(from.generations_formed);
  counts_.restarts += static_cast<std::uint64_t>(from.restarts);
  counts_.lease_losses += static_cast<std::uint64_t>(from.lease_losses);
  for (const std::string& kind : from.failures) ++counts_.failures[kind];
  if (from.generations_formed > 0) see_nodes(job_id);
  const bool over = job.membership.phase() == JobPhase::kEnded;
  if (!over) return;
  hand_on(inquiries_.job_ended(job_id, *job.membership.verdict(), job.last_change, now_));
  if (std::ranges::find(ended_, job_id) == ended_.end()) {
    ended_.push_back(job_id);
    const Verdict& verdict = *job.membership.verdict();
    ++(verdict.success                           ? counts_.jobs_succeeded
       : verdict.cause == VerdictCause::kStopped ? counts_.jobs_stopped
                                                 : counts_.jobs_failed);
  }
  notify_watchers(job_id, End{*job.membership.verdict()}, job.last_change);
}

void JobTable::forget_deserted_jobs() {
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    const auto job = it++;
    std::optional<TimePoint>& since = job->second.deserted_since;
    if (!job->second.membership.is_deserted()) {
      since.reset();
    } else if (!since) {
      since = now_;
    } else if (now_ >= *since + options_.times.lease) {
      out_.log.push_back("job '" + job->first + "' is forgotten: no node waits for it any more");
      out_.changes.push_back({++changes_, JobForgotten{job->first}});
      jobs_.erase(job);
    }
  }
}

void JobTable::forget_old_verdicts() {
  while (ended_.size() > kEndedJobsKept) {
    const auto quiet = std::ranges::find_if(ended_, [&](const std::string& id) {
      return jobs_.at(id).membership.connected_count() == 0;
    });
    if (quiet == ended_.end()) return;
    out_.changes.push_back({++changes_, JobForgotten{*quiet}});
    note_over(jobs_.at(*quiet).instance);
    jobs_.erase(*quiet);
    ended_.erase(quiet);
  }
}

}  // namespace ddprun
