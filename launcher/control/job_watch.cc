#include "launcher/control/job_watch.h"

#include <algorithm>
#include <utility>

#include "base/fail.h"
#include "launcher/control/elected.h"
#include "launcher/control/json_fields.h"
#include "launcher/hang/worker_inspector.h"
#include "launcher/plan/job_plan.h"
#include "rendezvous/net/tcp_address.h"

namespace ddprun {

using Json = nlohmann::json;

JobPicture picture_of(const std::vector<LocalAgent>& agents, const UserRequest& request) {
  JobPicture picture{.json = {{"agents", Json::array()}}};
  for (const LocalAgent& agent : agents) {
    const Result<Asked> asked = ask(agent, request);
    if (!asked) {
      picture.trouble = asked.error().message();
      picture.code = code_of(asked.error());
      continue;
    }
    picture.json["agents"].push_back(asked->answer.value("node", Json::object()));
    const Json jobs = asked->answer.value("service", Json::object()).value("jobs", Json::array());
    if (!jobs.empty()) {
      picture.json["job"] = jobs.at(0);
    } else if (asked->answer.contains("service_silent")) {
      picture.json["service_silent"] = asked->answer["service_silent"];
    }
  }
  if (!picture.json["agents"].empty()) return {.json = std::move(picture.json)};
  if (agents.size() > 1) picture.trouble = "no ddprun of the job answers";
  return picture;
}

Duration stacks_patience() { return WorkerInspector::kPatience + kAnswerPatience; }

namespace {

// Asks the agents of one job, as JobWatch::ask() does. Each has the output of its own workers. Of
// other requests the first agent that answers is enough.
Answer ask_agents(const std::vector<LocalAgent>& agents, const UserRequest& request,
                  const std::function<bool(const Answer&)>& part) {
  Answer last{.text = "no ddprun of the job answers"};
  for (const LocalAgent& agent : agents) {
    Result<Asked> asked = ask(agent, request);
    const bool is_done = asked && asked->answer.value("ok", false);
    if (!last.done) {
      last.done = is_done;
      last.text = asked ? asked->answer.value("text", "") : asked.error().message();
    }
    if (asked && !is_answered_by_nodes(request.what)) return last;
    if (!is_done) continue;
    const TimePoint deadline = BootClock::now() + stacks_patience();
    while (const Result<std::string> line = asked->client.line(deadline)) {
      if (!part({.done = true, .page = *line + "\n", .more = true})) return last;
    }
  }
  return last;
}

}  // namespace

Result<ServiceCall> plan_service_call(const ControlOptions& options) {
  LaunchOptions service = options.service;
  service.rdzv_id = options.job;
  Result<AgentConfig> config = plan_call(std::move(service));
  if (!config) return config.error();
  ServiceCall call;
  call.address = config->rendezvous.endpoint;
  call.others = config->rendezvous.other_services;
  call.key = config->keys.key_of(options.job).value_or(Secret());
  call.munge = config->munge.munge;
  call.demands_proof = config->options.require_auth;
  call.tls = config->tls;
  if (const EtcdPlace& etcd = config->rendezvous.etcd; !etcd.members.empty()) {
    call.find_leader = [etcd, tls = config->etcd_tls] { return find_elected(etcd, tls); };
    Result<HostPort> leader = call.find_leader();
    if (!leader) return leader.error();
    call.address = std::move(*leader);
  }
  return call;
}

ExitCode code_of_no_call(const Error& error) {
  switch (error.kind) {
    case ErrorKind::kPeerLost: return ExitCode::kNoJob;
    case ErrorKind::kProtocol:
    case ErrorKind::kConnection:
    case ErrorKind::kTimeout: return ExitCode::kNoAnswer;
    default: return usage_or(ExitCode::kFiles, error);
  }
}

ExitCode code_of_call(const Error& error) {
  switch (error.kind) {
    case ErrorKind::kPeerLost: return ExitCode::kNoJob;  // the elected service
    case ErrorKind::kStopped:
    case ErrorKind::kUnsupported: return ExitCode::kRefused;
    case ErrorKind::kNotFound: return ExitCode::kAddress;
    default: return ExitCode::kNoAnswer;
  }
}

int JobWatch::find() {
  if (is_of_service()) {
    Result<ServiceCall> call = plan_service_call(options_);
    if (!call) return end_refused(options_, call.error().message(), code_of_no_call(call.error()));
    call_ = std::move(*call);
    return 0;
  }
  Choice choice = choose(options_);
  agents_ = std::move(choice.agents);
  return choice.exit_code;
}

JobPicture JobWatch::picture() {
  return is_of_service() ? picture_of_service() : picture_of(agents_, options_);
}

Answer JobWatch::ask(const UserRequest& request,
                     const std::function<bool(const Answer&)>& part) const {
  if (!is_of_service()) return ask_agents(agents_, request, part);
  ServiceCall call = call_;
  call.to_more = stacks_patience();
  call.on_output = part;
  Result<ServiceReply> reply = call_service(call, request);
  if (!reply) return {.text = reply.error().message()};
  if (reply->broke_off) return {.text = reply->broke_off->message()};
  return std::move(reply->answer);
}

JobPicture JobWatch::picture_of_service() {
  UserRequest request = options_;
  request.number = 1;
  const Result<ServiceReply> reply = call_service(call_, request);
  if (!reply) return {.trouble = reply.error().message(), .code = code_of_call(reply.error())};
  if (call_.find_leader) call_.address = reply->address;  // the next call asks it first
  const std::string at = to_text(reply->address) + ": ";
  const Json page = parsed_object(reply->answer.page);
  const Json jobs = page.value("jobs", Json::array());
  if (!reply->answer.done || jobs.empty()) {
    const std::string& text = reply->answer.text;
    return {.trouble = at + (text.empty() ? "this service has no jobs" : text),
            .code = ExitCode::kNoJob};
  }
  // Without a name: the only job that has not ended, or the only one.
  const auto has_ended = [](const Json& job) { return job.contains("verdict"); };
  const auto running = std::count_if(jobs.begin(), jobs.end(), std::not_fn(has_ended));
  if (jobs.size() > 1 && running != 1) {
    return {.trouble = at + "several jobs: give the id of one (ddprun status lists them)",
            .code = ExitCode::kUsage};
  }
  const auto job =
      running == 1 ? std::find_if_not(jobs.begin(), jobs.end(), has_ended) : jobs.begin();
  options_.job = text_field(*job, "id");  // the next picture shows the same job
  return {.json = {{"job", *job}}};
}

}  // namespace ddprun
