#include "rendezvous/http/core/metrics_page.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "base/concat.h"
#include "base/printed.h"
#include "base/seconds.h"
#include "base/utf8.h"
#include "base/version.h"

namespace ddprun {
namespace {

// All results of kind_word().
constexpr const char* kFailureKinds[] = {"exit_code",     "exception",     "signal",
                                         "out_of_memory", "start_failure", "lease_lost",
                                         "node_lost",     "node_unfit",    "hang"};

// Limit of a job's id in a label.
constexpr std::size_t kLabelBytes = 256;

std::string label_value(std::string_view text) {
  std::string escaped;
  while (!text.empty()) {
    const std::size_t length = character_bytes(text);
    if (text[0] == '\n') {
      escaped += "\\n";
    } else if (length == 0) {
      escaped += '?';
    } else {
      if (text[0] == '\\' || text[0] == '"') escaped += '\\';
      escaped += text.substr(0, length);
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return escaped;
}

std::string label(std::string_view name, std::string_view value) {
  return concat("{", name, "=\"", label_value(value), "\"}");
}

// Page: builds the text line by line.
class Page {
 public:
  enum class Kind { kCounter, kGauge, kHistogram };
  static constexpr EnumNames<Kind, 3> kKindWords{
      {{Kind::kCounter, "counter"}, {Kind::kGauge, "gauge"}, {Kind::kHistogram, "histogram"}}};

  void family(std::string_view name, Kind kind, std::string_view help) {
    name_ = name;
    text_ += concat("# HELP ", name_, " ", help, "\n# TYPE ", name_, " ",
                    enum_name(kKindWords, kind), "\n");
  }
  void sample(std::string_view labels, std::string_view value, std::string_view suffix = "") {
    text_ += name_;
    text_ += suffix;
    text_ += labels;
    text_ += ' ';
    text_ += value;
    text_ += '\n';
  }
  void sample(std::string_view labels, std::uint64_t value) {
    sample(labels, std::to_string(value));
  }

  void counter(std::string_view name, std::string_view help, std::uint64_t value) {
    family(name, Kind::kCounter, help);
    sample("", value);
  }
  void gauge(std::string_view name, std::string_view help, std::uint64_t value) {
    family(name, Kind::kGauge, help);
    sample("", value);
  }

  std::string take() { return std::move(text_); }

 private:
  std::string text_;
  std::string name_;
};
using Kind = Page::Kind;

// ListedJobs: some jobs by their label. Two jobs with the same label are listed once, because
// a duplicate series makes the whole page invalid.
using ListedJobs = std::map<std::string, const Membership*>;

ListedJobs list_jobs(const std::vector<const Membership*>& jobs) {
  ListedJobs listed;
  for (const Membership* job : jobs) {
    if (listed.size() == kJobsListed || job->phase() == JobPhase::kEnded) break;
    listed.emplace(label("job", clipped(job->spec().id, kLabelBytes)), job);
  }
  return listed;
}

template <class Value>
void by_job(Page& page, const ListedJobs& jobs, std::string_view name, std::string_view help,
            Value&& value) {
  page.family(name, Kind::kGauge, help);
  for (const auto& [label, job] : jobs) page.sample(label, std::to_string(value(*job)));
}

void add_times(Page& page, const ListedJobs& jobs, TimePoint now) {
  page.family("ddprun_job_time_seconds", Kind::kGauge, "Where the job's time went, by cause.");
  for (const auto& [label, job] : jobs) {
    const std::optional<JobTimes> times = job->times(now);
    if (!times) continue;
    const std::string_view job_only = std::string_view(label).substr(0, label.size() - 1);
    for (const auto& [cause, word] : kTimeCauseWords)
      page.sample(concat(job_only, ",cause=\"", word, "\"}"), in_seconds((*times)[cause]));
  }
}

void add_step_shares(Page& page, const ListedJobs& jobs) {
  std::vector<std::pair<std::string_view, StepLimits::Summary>> by_job;  // its label
  for (const auto& [label, job] : jobs) {
    if (const auto shares = job->step_shares()) {
      by_job.emplace_back(std::string_view(label).substr(0, label.size() - 1), *shares);
    }
  }
  const auto add = [&](std::string_view name, std::string_view help, auto figure) {
    page.family(name, Kind::kGauge, help);
    for (const auto& [job_only, shares] : by_job) {
      for (const auto& [part, word] : kStepPartWords) {
        page.sample(concat(job_only, ",part=\"", word, "\"}"),
                    printed("%.4f", share_of(shares.*figure, part) / 100));
      }
    }
  };
  add("ddprun_job_step_ratio", "On what a step is spent, by part; the mean of the ranks.",
      &StepLimits::Summary::mean);
  add("ddprun_job_step_highest_ratio", "The same of the rank that has most of the part.",
      &StepLimits::Summary::highest);
}

void add_jobs(Page& page, const JobTable& table, TimePoint now) {
  const std::vector<const Membership*> jobs = table.jobs();
  std::map<JobPhase, std::uint64_t> in_phase;
  std::uint64_t members = 0;
  for (const Membership* job : jobs) {
    ++in_phase[job->phase()];
    members += job->connected_count();
  }
  page.family("ddprun_jobs", Kind::kGauge,
              "Jobs that the service knows; of ended jobs those whose verdict it remembers.");
  for (const auto& [phase, word] : kJobPhaseWords) {
    page.sample(label("phase", word), in_phase[phase]);
  }
  page.gauge("ddprun_members", "Agents that are connected.", members);

  const JobCounts& counts = table.counts();
  page.counter("ddprun_generations_total", "Generations that were formed.",
               counts.generations_formed);
  page.counter("ddprun_restarts_total", "Restarts, the generations that used budget.",
               counts.restarts);
  page.counter("ddprun_lease_losses_total", "Nodes lost because they were silent for their lease.",
               counts.lease_losses);

  page.family("ddprun_jobs_ended_total", Kind::kCounter, "Jobs that have ended, by outcome.");
  page.sample(label("outcome", "success"), counts.jobs_succeeded);
  page.sample(label("outcome", "failure"), counts.jobs_failed);
  page.sample(label("outcome", "stopped"), counts.jobs_stopped);
  page.family("ddprun_failures_total", Kind::kCounter,
              "Generations that failed, by the kind of the first failure.");
  for (const char* kind : kFailureKinds) {
    const auto found = counts.failures.find(kind);
    page.sample(label("kind", kind), found == counts.failures.end() ? 0 : found->second);
  }

  const ListedJobs listed = list_jobs(jobs);
  by_job(page, listed, "ddprun_job_generation", "The job's newest generation; -1: none yet.",
         [](const Membership& job) { return job.generation().value; });
  by_job(page, listed, "ddprun_job_members", "Agents of the job that are connected.",
         [](const Membership& job) { return job.connected_count(); });
  by_job(page, listed, "ddprun_job_restarts_used", "Of the job's restart budget.",
         [](const Membership& job) { return job.restarts_used(); });
  by_job(page, listed, "ddprun_job_restarts_allowed", "The job's restart budget.",
         [](const Membership& job) { return job.spec().max_restarts; });
  by_job(page, listed, "ddprun_job_slow_ranks", "Ranks that make the others of the job wait.",
         [](const Membership& job) { return job.slow_ranks(); });
  add_step_shares(page, listed);
  add_times(page, listed, now);
  page.gauge("ddprun_jobs_not_listed", "Running jobs that have no series of their own here.",
             jobs.size() - in_phase[JobPhase::kEnded] - listed.size());
}

void add_connections(Page& page, const JobTable& table, const Figures& figures) {
  const ServiceCounters& service = figures.service;
  page.counter("ddprun_refused_handshakes_total",
               "Agents that were refused, and connections closed before an agent had said hello.",
               table.counts().refusals + service.closed_before_hello);
  page.counter("ddprun_blocked_connections_total",
               "Wrong proofs answered with \"try later\": too many from one address for one job.",
               service.blocked);
  page.gauge("ddprun_control_connections",
             "Connections of agents, and connections that have not sent anything yet.",
             service.connections);
  page.counter("ddprun_control_received_bytes_total", "From agents on TCP.",
               service.bytes_received);
  page.counter("ddprun_control_sent_bytes_total", "To agents on TCP.", service.bytes_sent);

  page.family("ddprun_http_requests_total", Kind::kCounter,
              "HTTP requests that were answered, by status.");
  for (const auto& [status, answers] : figures.http.answers) {
    page.sample(label("status", std::to_string(status)), answers);
  }
  page.gauge("ddprun_http_connections", "Open HTTP connections.", figures.http.connections);
}

void add_times(Page& page, std::string_view name, std::string_view help,
               const TimeHistogram& times) {
  page.family(name, Kind::kHistogram, help);
  std::uint64_t below = 0;
  for (std::size_t i = 0; i < TimeHistogram::kBounds.size(); ++i) {
    below += times.within[i];
    page.sample(label("le", in_seconds(TimeHistogram::kBounds[i])), std::to_string(below),
                "_bucket");
  }
  page.sample(label("le", "+Inf"), std::to_string(times.measured), "_bucket");
  page.sample("", in_seconds(times.sum), "_sum");
  page.sample("", std::to_string(times.measured), "_count");
}

void add_etcd(Page& page, const EtcdCounters& etcd) {
  page.gauge("ddprun_leader", "1: this service leads and answers agents; 0: it does not.",
             etcd.leads ? 1 : 0);
  page.gauge("ddprun_term", "The term of this service while it leads; 0: it does not.",
             static_cast<std::uint64_t>(etcd.term));
  add_times(page, "ddprun_etcd_request_seconds", "Requests to etcd.", etcd.took);
  page.counter("ddprun_etcd_errors_total", "Requests to etcd without a good answer.", etcd.errors);
}

void add_process(Page& page, const ProcessFigures& process) {
  page.family("process_cpu_seconds_total", Kind::kCounter, "User and system time.");
  page.sample("", in_seconds(process.cpu));
  page.gauge("process_resident_memory_bytes", "Resident memory.", process.resident_bytes);
  page.gauge("process_virtual_memory_bytes", "Virtual memory.", process.virtual_bytes);
  page.gauge("process_open_fds", "Open descriptors.", process.open_descriptors);
  page.gauge("process_max_fds", "Descriptors that may be open.", process.max_descriptors);
  page.gauge("process_start_time_seconds", "When the process was started, since 1970.",
             process.started);
}

void add_store(Page& page, const StoreCounters& store) {
  page.family("ddprun_store_operations_total", Kind::kCounter,
              "Requests of the store's clients, by kind.");
  for (const CommandRule& rule : kCommandRules) {
    page.sample(label("kind", rule.name), store.requests[static_cast<std::size_t>(rule.command)]);
  }
  page.counter("ddprun_store_received_bytes_total", "From the store's clients.",
               store.bytes_received);
  page.counter("ddprun_store_sent_bytes_total", "To the store's clients.", store.bytes_sent);
  page.counter("ddprun_store_accepted_total", "Connections of clients.", store.accepted);
  page.family("ddprun_store_refused_total", Kind::kCounter,
              "Connections of clients that the store closed, by its reason.");
  for (const auto& [kind, word] : Refusal::kWords) {
    page.sample(label("reason", word), store.refusals[kind]);
  }
  page.gauge("ddprun_store_connections", "Open connections of clients.", store.connections);
  page.gauge("ddprun_store_waiters", "Clients whose WAIT, FETCH or BARRIER is pending.",
             store.waiting);
  page.gauge("ddprun_store_keys", "Keys that hold values.", store.keys);
  page.gauge("ddprun_store_held_bytes", "Bytes that the store holds.", store.held_bytes);
}

}  // namespace

std::string metrics_page(const JobTable& jobs, const Figures& figures, TimePoint now) {
  Page page;
  page.family("ddprun_build_info", Kind::kGauge, "Always 1.");
  page.sample(label("version", kVersion), 1);
  add_jobs(page, jobs, now);
  add_connections(page, jobs, figures);
  add_times(page, "ddprun_event_loop_lag_seconds", "Delay of a timer in the service's thread.",
            figures.service.lag);
  page.gauge("ddprun_state_writable",
             "1: the state can be written, or none is kept; 0: it cannot be written.",
             figures.state_writable ? 1 : 0);
  if (figures.etcd) add_etcd(page, *figures.etcd);
  add_process(page, figures.process);
  if (figures.store) add_store(page, *figures.store);
  return page.take();
}

}  // namespace ddprun
