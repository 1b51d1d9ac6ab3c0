#include "rendezvous/core/job_table.h"

#include <algorithm>

#include "base/assert.h"

namespace ddprun {

JobTable::JobTable(ServiceOptions options) : options_(std::move(options)) {
  DDPRUN_ASSERT(options_.agent_patience < options_.membership.lease,
                "an agent gives up before the service gives it up");
}

ServiceOutput JobTable::receive(const Origin& origin, const AgentMessage& message, TimePoint now) {
  ServiceOutput out;
  if (const Hello* first = std::get_if<Hello>(&message)) {
    hello(origin, *first, now, out);
    return out;
  }
  const auto found = agents_.find(origin.connection);
  if (found == agents_.end()) {
    refuse(origin.connection, "the first message must be a hello", out);
    return out;
  }
  const Agent agent = found->second;
  Membership& job = jobs_.at(agent.job);
  if (const AgentStatus* status = std::get_if<AgentStatus>(&message)) {
    forward(agent.job, job.status(agent.agent_id, *status, now), out);
  } else if (const Heartbeat* heartbeat = std::get_if<Heartbeat>(&message)) {
    job.heard(agent.agent_id, now);
    out.sends.push_back({origin.connection, HeartbeatAck{heartbeat->number}});
  } else if (const Leave* leave = std::get_if<Leave>(&message)) {
    forward(agent.job, job.left(agent.agent_id, *leave, now), out);
  }
  return out;
}

void JobTable::hello(const Origin& origin, const Hello& hello, TimePoint now, ServiceOutput& out) {
  if (hello.protocol != kControlProtocol) {
    return refuse(origin.connection,
                  "this service speaks control protocol " + std::to_string(kControlProtocol) +
                      ", ddprun " + hello.version + " on " + hello.node.host + " speaks " +
                      std::to_string(hello.protocol) + ": use the same ddprun on all nodes",
                  out);
  }
  auto job = jobs_.find(hello.job.id);
  const bool over = job != jobs_.end() && job->second.phase() == Membership::Phase::kEnded;
  if (over && !job->second.has_member(hello.node.agent_id) &&
      hello.status.generation < Generation(0)) {
    jobs_.erase(job);
    ended_.erase(std::remove(ended_.begin(), ended_.end(), hello.job.id), ended_.end());
    job = jobs_.end();
  }
  if (job == jobs_.end()) {
    job = jobs_.emplace(hello.job.id, Membership(hello.job, options_.membership, now)).first;
  }
  if (const std::optional<std::string> why_not = job->second.refusal(hello)) {
    return refuse(origin.connection, *why_not, out);
  }
  if (const auto old = connections_.find(hello.node.agent_id); old != connections_.end()) {
    if (old->second != origin.connection) {
      agents_.erase(old->second);
      out.closes.push_back(old->second);
    }
  }
  agents_[origin.connection] = {hello.job.id, hello.node.agent_id};
  connections_[hello.node.agent_id] = origin.connection;
  if (!origin.service_address.empty()) job->second.set_service_address(origin.service_address);
  out.sends.push_back(
      {origin.connection, Welcome{options_.heartbeat_interval, options_.agent_patience,
                                  options_.embedded, options_.host}});
  forward(hello.job.id, job->second.joined(hello, origin.local, now), out);
}

void JobTable::refuse(ConnectionId connection, std::string reason, ServiceOutput& out) {
  out.log.push_back("refused an agent: " + reason);
  out.sends.push_back({connection, Refused{std::move(reason)}});
  out.closes.push_back(connection);
}

void JobTable::disconnected(ConnectionId connection) {
  const auto found = agents_.find(connection);
  if (found == agents_.end()) return;
  const Agent agent = found->second;
  agents_.erase(found);
  connections_.erase(agent.agent_id);
  jobs_.at(agent.job).disconnected(agent.agent_id);
}

ServiceOutput JobTable::tick(TimePoint now) {
  ServiceOutput out;
  for (auto& [id, job] : jobs_) {
    const std::optional<TimePoint> due = job.deadline();
    if (due && *due <= now) forward(id, job.tick(now), out);
  }
  forget_old_verdicts();
  return out;
}

std::optional<TimePoint> JobTable::deadline() const {
  std::optional<TimePoint> earliest;
  for (const auto& [id, job] : jobs_) {
    const std::optional<TimePoint> due = job.deadline();
    if (due && (!earliest || *due < *earliest)) earliest = due;
  }
  return earliest;
}

const Membership* JobTable::find(const std::string& job) const {
  const auto found = jobs_.find(job);
  return found == jobs_.end() ? nullptr : &found->second;
}

void JobTable::forward(const std::string& job, MembershipOutput&& from, ServiceOutput& out) {
  for (Tell& tell : from.tells) {
    const auto connection = connections_.find(tell.agent_id);
    if (connection == connections_.end()) continue;
    std::visit(
        [&](auto&& directive) {
          out.sends.push_back({connection->second, std::forward<decltype(directive)>(directive)});
        },
        std::move(tell.directive));
  }
  for (std::string& line : from.log) out.log.push_back(std::move(line));
  const bool over = jobs_.at(job).phase() == Membership::Phase::kEnded;
  if (over && std::find(ended_.begin(), ended_.end(), job) == ended_.end()) ended_.push_back(job);
}

void JobTable::forget_old_verdicts() {
  while (ended_.size() > kEndedJobsKept) {
    const auto quiet = std::find_if(ended_.begin(), ended_.end(), [&](const std::string& id) {
      return jobs_.at(id).connected_count() == 0;
    });
    if (quiet == ended_.end()) return;
    jobs_.erase(*quiet);
    ended_.erase(quiet);
  }
}

}  // namespace ddprun
