#include "launcher/plan/job_plan.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/concat.h"
#include "base/is_control.h"
#include "base/random_id.h"
#include "base/seconds.h"
#include "base/signal_names.h"
#include "base/usable_cpus.h"
#include "base/worker_env.h"
#include "launcher/cluster/core/pod_names.h"
#include "launcher/guard/run_directory.h"
#include "launcher/machine/machine.h"
#include "launcher/plan/binding.h"
#include "launcher/plan/program.h"
#include "launcher/process/pseudo_terminal.h"
#include "launcher/process/slurm_step.h"
#include "rendezvous/auth/core/slurm_conf.h"
#include "rendezvous/auth/key_file.h"
#include "rendezvous/auth/munge.h"
#include "rendezvous/net/tcp_address.h"

namespace ddprun {
namespace {

bool is_one_terminal() {
  struct stat out {};
  struct stat err {};
  return fstat(STDOUT_FILENO, &out) == 0 && fstat(STDERR_FILENO, &err) == 0 &&
         out.st_rdev == err.st_rdev;
}

void look_at_console(AgentConfig& config) {
  config.screen = size_of_terminal(STDOUT_FILENO);
  config.look =
      look_of({.out = config.screen,
               .err = size_of_terminal(STDERR_FILENO),
               .one_terminal = is_one_terminal(),
               .term = environment_text("TERM"),
               .no_color = environment_text("NO_COLOR"),
               .has_json = config.options.log_format == LogFormat::kJson,
               .is_typed_into = config.options.passes_stdin && isatty(STDIN_FILENO) != 0});
}

// Returns the default time between the first signal to workers and SIGKILL. Slurm's own SIGKILL
// must come later. conf: slurm.conf; empty: it is not known.
Duration grace_under_slurm(const std::string& conf) {
  const std::optional<Duration> kill_wait = conf.empty() ? std::nullopt : kill_wait_of(conf);
  if (!kill_wait) return kDefaultGraceUnderSlurm;
  constexpr Duration kMargin = std::chrono::seconds(5);
  return std::max<Duration>(*kill_wait - std::min(kMargin, *kill_wait * 2 / 5),
                            std::chrono::seconds(1));
}

// Returns the job as Slurm's commands take it. One task of each array has the number of the whole
// array, which would mean all of its tasks. In other jobs the variables of an array may be those of
// the task that submitted them.
std::string name_in_slurm(const std::string& job) {
  const std::string task = environment_text("SLURM_ARRAY_TASK_ID");
  const bool has_number_of_array = job == environment_text("SLURM_ARRAY_JOB_ID");
  return has_number_of_array && !task.empty() ? concat(job, "_", task) : job;
}

// Plans what --requeue, --save-before-end and --checkpoint-signal ask for in a job of Slurm, and in
// a pod of Kubernetes.
void watch_time_limit(LaunchOptions& options, AgentConfig& config) {
  const std::string job = environment_text("SLURM_JOB_ID");
  const char* const given = options.requeue ? "--requeue" : "--save-before-end";
  if (options.watches_time_limit() && job.empty()) {
    options.remarks.push_back(concat(given, " has no effect: this is not a job of Slurm"));
  } else if (options.watches_time_limit()) {
    if (options.checkpoint_signal == 0) options.checkpoint_signal = SIGUSR1;
    const std::string node = environment_text("SLURM_NODEID");
    if (node.empty() || node == "0") config.watched_job = name_in_slurm(job);
  }
  const int signal = options.checkpoint_signal;
  const bool gets_term = !job.empty() || is_in_pod(environment_variable);
  config.saves_on_term = gets_term && signal != 0 && signal != SIGTERM;
}

// Reports output options that name local ranks, but none of this node. Another node may have
// them.
std::vector<std::string> remarks_on_ranks(const LaunchOptions& options, int slots) {
  std::vector<std::string> remarks;
  const auto check = [&](const char* option, const auto& ranks, auto lowest) {
    if (ranks.empty() || lowest(*ranks.begin()) < slots) return;
    remarks.push_back(std::string(option) +
                      " names no worker of this node: its local ranks are 0 to " +
                      std::to_string(slots - 1));
  };
  const auto key = [](const auto& entry) { return entry.first; };
  check("--redirects", options.redirects.by_rank, key);
  check("--tee", options.tee.by_rank, key);
  check("--local-ranks-filter", options.shown_ranks, [](LocalRank rank) { return rank.value; });
  return remarks;
}

// Returns the prefix of lines with --tee. The host is the same for all workers of this agent.
std::string tee_pattern_of(const LaunchOptions& options) {
  constexpr std::string_view kHost = "${hostname}";
  std::string pattern = options.line_prefix;
  if (pattern.empty()) pattern = environment_text("TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE");
  for (std::size_t at = pattern.find(kHost); at != pattern.npos; at = pattern.find(kHost, at)) {
    const std::string host = host_name();
    pattern.replace(at, kHost.size(), host);
    at += host.size();
  }
  return pattern;
}

std::string own_cgroups() {
  std::ifstream file("/proc/self/cgroup");
  return {std::istreambuf_iterator<char>(file), {}};
}

// Reads torchrun's names for --shutdown-grace.
Result<void> read_shutdown_timeout(LaunchOptions& options) {
  constexpr const char* kVariable = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT";
  if (options.shutdown_timeout) options.grace = options.shutdown_timeout;
  if (const std::string text = environment_text(kVariable); !options.grace && !text.empty()) {
    Result<Duration> read = parse_seconds(text);
    if (!read) return std::move(read).error().within(kVariable);
    options.grace = *read;
  }
  return {};
}

Result<AgentConfig> plan(LaunchOptions options) {
  AgentConfig config;
  Result<Rendezvous> rendezvous = plan_rendezvous(options);
  if (!rendezvous) return rendezvous.error();
  if (Result<void> fits = check_output(options); !fits) return fits.error();
  Result<int> slots = count_slots(options.slots);
  if (!slots) return slots.error();
  std::error_code unknown;
  if (!options.directory.empty() && !std::filesystem::is_directory(options.directory, unknown)) {
    return invalid_value(options.directory, "no such directory").within("--chdir");
  }
  Result<WorkerCommand> command = find_program(options);
  if (!command) return command.error();
  if (!options.store_allow.empty()) {
    Result<AddressSet> allowed = AddressSet::parse(options.store_allow);
    if (!allowed) return std::move(allowed).error().within("--store-allow");
    config.store_allow = std::move(*allowed);
  }
  if (options.local_addr.find('/') != std::string::npos) {
    if (auto network = Network::parse(options.local_addr); !network) {
      return std::move(network).error().within("--local-addr");
    }
  }
  Result<std::vector<std::string>> devices = own_devices(options, *slots);
  if (!devices) return devices.error();
  config.own_devices = std::move(*devices);
  if (const Result<void> read = read_shutdown_timeout(options); !read) return read.error();
  Result<Binding> binding = bind_workers(options, *slots);
  if (!binding) return binding.error();
  config.binding = std::move(binding->text);
  config.seats = std::move(binding->seats);
  // In this case the workers of torchrun's c10d serve the store themselves, too.
  if (!options.worker_store && rendezvous->mode != Rendezvous::Mode::kStatic &&
      options.on_join != OnJoin::kCheckpoint &&
      environment_text("TORCH_DISABLE_SHARE_RDZV_TCP_STORE") == "1") {
    options.worker_store = WorkerStore::kRank0;
  }
  config.rendezvous = std::move(*rendezvous);
  watch_time_limit(options, config);
  if (options.cluster) {
    config.cluster = to_sentence(*options.cluster, *slots, options.taken);
    const int cpus = static_cast<int>(usable_cpus().size());
    if (std::string remark = remark_on_cpus(*options.cluster, cpus); !remark.empty())
      options.remarks.push_back(std::move(remark));
  }
  // Workers inherit it.
  if (const std::string step = slurm_step(environment_variable); !step.empty()) {
    setenv(kStepVariable, step.c_str(), 1);
  }
  unsetenv(kTasksVariable);
  std::vector<std::string>& remarks = config.rendezvous.remarks;
  remarks.insert(remarks.begin(), options.remarks.begin(), options.remarks.end());
  for (const auto& more : {binding->remarks, remarks_on_ranks(options, *slots)}) {
    remarks.insert(remarks.end(), more.begin(), more.end());
  }
  if (const std::string outer = environment_text("TORCHELASTIC_RUN_ID"); !outer.empty()) {
    remarks.push_back("this ddprun runs in a worker of job '" + outer + "' (rank " +
                      environment_text("RANK") + "); its own workers get their own ranks");
  }
  config.slots = *slots;
  config.command = std::move(*command);
  config.options = std::move(options);
  if (config.options.standalone) config.options.rdzv_id = random_hex(16);  // as torchrun does
  if (config.rendezvous.is_local()) config.options.node_rank.reset();
  config.signals.assign(kPassedSignals.begin(), kPassedSignals.end());
  config.signals.insert(config.signals.end(), kRelayedSignals.begin(), kRelayedSignals.end());
  if (!slurm_step(environment_variable).empty()) {
    config.default_grace = grace_under_slurm(slurm_conf());
  }
  if (const pid_t manager = slurm_manager(); manager != 0) {
    if (signals_whole_step(own_cgroups())) config.manager = manager;
  }
  look_at_console(config);
  config.tee_pattern = tee_pattern_of(config.options);
  config.inherits_omp_threads = std::getenv("OMP_NUM_THREADS") != nullptr;
  config.inherited_nccl_async_error_handling = environment_text("TORCH_NCCL_ASYNC_ERROR_HANDLING");
  return config;
}

// Reads the TLS files of a job that meets other nodes.
Result<void> find_tls_of(AgentConfig& config) {
  const LaunchOptions& options = config.options;
  config.tls_files = {
      .cert = options.rdzv_tls_cert, .key = options.rdzv_tls_key, .ca = options.rdzv_tls_ca};
  if (Result<TlsContextPtr> etcd = find_etcd_tls(config.rendezvous.etcd); etcd) {
    config.etcd_tls = std::move(*etcd);
  } else {
    return etcd.error();
  }
  const bool meets = !config.rendezvous.is_local();
  if (!meets || !config.tls_files.is_given()) return {};
  Result<FoundTls> found = TlsContext::for_agent(config.tls_files);
  if (!found) return found.error();
  if (!found->remark.empty()) config.rendezvous.remarks.push_back(found->remark);
  config.tls = std::move(found->context);
  return {};
}

// Looks for munge. Called if there are no keys and no certificates for both sides.
Result<void> find_munge_of(AgentConfig& config) {
  const LaunchOptions& options = config.options;
  config.munge = find_munge({.socket = options.munge_socket});
  const std::string& why_not = config.munge.why_not;
  if (config.munge.munge) return {};
  if (options.require_auth) {
    return invalid_argument(
               "needs a key (--rdzv-key-file or DDPRUN_RDZV_KEY), certificates (--rdzv-tls-cert, "
               "-key and -ca), or munge, which is not available: " +
               why_not)
        .within("--require-auth");
  }
  const bool is_expected = options.cluster && !options.cluster->auth.empty() &&
                           options.taken == Taken::kNodes && options.munge_socket != kNoMunge;
  if (is_named(options.munge_socket) || is_expected) {
    config.rendezvous.remarks.push_back("munge is not used: " + why_not);
  }
  return {};
}

// Reads the keys of a job that meets other nodes. For every job, find_keys() removes the
// variable from the environment.
Result<void> find_keys_of(AgentConfig& config) {
  const LaunchOptions& options = config.options;
  Result<FoundKeys> found = find_keys(options.rdzv_key_file);
  if (!found) return found.error();
  if (config.rendezvous.is_local()) return {};
  if (!found->remark.empty()) config.rendezvous.remarks.push_back(found->remark);
  const bool shows_certificates =
      config.tls && !config.tls_files.cert.empty() && config.tls_files.has_authority();
  if (found->keys.empty()) {
    return shows_certificates ? Result<void>() : find_munge_of(config);
  }
  if (!found->keys.key_of(options.rdzv_id)) {
    return invalid_argument("the file has no key for job '" + options.rdzv_id + "'")
        .within("--rdzv-key-file");
  }
  config.keys = std::move(found->keys);
  return {};
}

Result<AgentConfig> with_proofs(AgentConfig config_so_far) {
  Result<AgentConfig> config = std::move(config_so_far);
  for (const auto find : {&find_tls_of, &find_keys_of}) {
    Result<void> found = find(*config);
    if (!found) return found.error();
  }
  return config;
}

}  // namespace

Result<TlsContextPtr> find_etcd_tls(const EtcdPlace& place) {
  if (!place.uses_tls) return TlsContextPtr();
  Result<FoundTls> found =
      TlsContext::for_agent({.cert = place.cert,
                             .key = place.key,
                             .ca = place.ca.empty() ? TlsFiles::kSystem : place.ca,
                             .options = ""});
  if (!found) {
    Error error = std::move(found).error();
    // Of the keys cacert, cert and key, only the first has another name in the option's.
    if (error.doing.starts_with("ca:")) error.doing.insert(2, "cert");
    return std::move(error).within("--rdzv-conf");
  }
  return std::move(found->context);
}

Result<AgentConfig> plan_job(LaunchOptions options) {
  Result<AgentConfig> config = plan(std::move(options));
  if (!config) {
    // The program or a GPU does not exist: this command line cannot work on this host.
    Error error = std::move(config).error();
    error.kind = ErrorKind::kInvalidArgument;
    return error;
  }
  return with_proofs(std::move(*config));
}

Result<AgentConfig> plan_call(LaunchOptions options) {
  AgentConfig config;
  Result<Rendezvous> rendezvous = plan_rendezvous(options);
  if (!rendezvous) return rendezvous.error();
  config.rendezvous = std::move(*rendezvous);
  config.options = std::move(options);
  return with_proofs(std::move(config));
}

PlanOptions plan_options(const AgentConfig& config, std::string log_directory) {
  PlanOptions plan = config;
  plan.log_directory = std::move(log_directory);
  return plan;
}

namespace {

// Makes the text one component of a path, so that a job's name cannot lead out of --log-dir.
std::string as_file_name(std::string text) {
  constexpr std::size_t kMostBytes = 100;
  text.resize(std::min(text.size(), kMostBytes));
  std::ranges::replace_if(
      text, [](char c) { return c == '/' || is_control(c); }, '_');
  return text;
}

// Returns a name as torchrun makes it. It adds the node's name if nodes may share the
// directory.
std::string log_name(const AgentConfig& config) {
  std::string name = as_file_name(config.options.rdzv_id) + "_" + random_hex(4);
  if (config.rendezvous.is_local()) return name;
  name += "_" + as_file_name(host_name());
  if (config.options.node_rank) name += "_" + std::to_string(*config.options.node_rank);
  return name;
}

}  // namespace

Result<UniqueFd> make_log_directory(AgentConfig& config) {
  const std::string& wanted = config.options.log_dir;
  if (wanted == "/dev/null") return UniqueFd();
  std::error_code error;
  if (!wanted.empty()) {
    // Absolute, because workers get this path and may run in another directory.
    const std::filesystem::path root = std::filesystem::absolute(wanted, error);
    config.log_root = root.string() + "/" + log_name(config);
    std::filesystem::create_directories(config.log_root, error);
    if (error) return system_error("--log-dir: make " + config.log_root, error.value());
    return UniqueFd();
  }
  const bool only_error_files =
      !config.options.redirects.asks_for_any() && !config.options.tee.asks_for_any();
  const std::string place = place_for_files(only_error_files);
  Result<RunDirectory> made = make_run_directory(place);
  if (!made) {
    Error trouble = std::move(made).error();
    trouble.doing = "make a temporary directory in " + place + " (TMPDIR)";
    return trouble;
  }
  config.scratch_directory = config.log_root = made->path;
  return std::move(made->lock);
}

}  // namespace ddprun
