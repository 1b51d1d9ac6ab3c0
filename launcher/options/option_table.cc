#include "launcher/options/option_table.h"

#include <array>
#include <cctype>
#include <cstdlib>

#include "base/concat.h"
#include "base/parse_number.h"
#include "base/seconds.h"
#include "base/signal_names.h"
#include "base/split.h"
#include "launcher/process/core/shell_words.h"

namespace ddprun {
namespace {

using Setter = OptionSpec::Setter;

template <class Enum, std::size_t N>
std::vector<std::string> words(const EnumNames<Enum, N>& table) {
  std::vector<std::string> texts;
  for (const auto& [value, word] : table) texts.emplace_back(word);
  return texts;
}

// Makes a setter() for a member of a member.
template <class Part, class T, class Parse>
Setter part_into(Part LaunchOptions::*part, T Part::*member, Parse parse) {
  return setter([=](LaunchOptions& options) -> T& { return options.*part.*member; }, parse);
}

// Makes a setter() for a word of a table. more: see parse_word().
template <class Member, class Enum, std::size_t N>
Setter word_into(Member LaunchOptions::*member, const EnumNames<Enum, N>& words,
                 std::string_view more = "") {
  return setter(member,
                [=, &words](const std::string& text) { return parse_word(words, text, more); });
}

template <class T>
Setter text_into(T LaunchOptions::*member) {
  return setter(member, text_as_given);
}

Result<std::string> parse_needed(const std::string& text) {
  if (!text.empty()) return text;
  return invalid_argument("empty value (give one, or leave the option out)");
}

// As text_into(), but refuses an empty text, which an unset variable of a script leaves. An
// empty text must not mean that the option was not given, for example for a key file.
Setter needed_into(std::string LaunchOptions::*member) { return setter(member, parse_needed); }

// Parses the value of a switch. torchrun reads its switches from the environment as integers.
// Users may also write --switch=false to revoke a switch that a script has given.
Result<bool> parse_switch(const std::string& text) {
  const bool number = !text.empty() && text.find_first_not_of("0123456789") == std::string::npos;
  if (!number && text != "true" && text != "false") {
    return invalid_value(text, "expected true, false, 1 or 0");
  }
  return text == "true" || (number && text.find_first_not_of('0') != std::string::npos);
}

// Parses a switch, or the limits of --node-check.
Result<std::optional<NodeLimits>> parse_node_check(const std::string& text) {
  if (text.find('=') != std::string::npos) {
    const Result<NodeLimits> limits = parse_node_limits(text);
    if (!limits) return limits.error();
    return *limits;
  }
  const Result<bool> is_on = parse_switch(text);
  if (!is_on) return invalid_value(text, "expected true, false, or limits such as memory=4000");
  return *is_on ? std::optional(NodeLimits()) : std::nullopt;
}

// Parses --rdzv-backend. An empty text, which torchrun's users may have in the variable, is none.
Result<std::optional<RdzvBackend>> parse_backend(const std::string& text) {
  if (text.empty()) return std::optional<RdzvBackend>();
  const Result<RdzvBackend> backend =
      parse_word(kRdzvBackendWords, text, "; without one, see --rdzv-endpoint and ddp-rendezvous");
  if (!backend) return backend.error();
  return std::optional(*backend);
}

Setter switch_into(bool LaunchOptions::*member) { return setter(member, parse_switch); }

template <class T>
Setter integer_into(T LaunchOptions::*member, int min, int max) {
  return setter(member, [=](const std::string& text) -> Result<int> {
    const std::optional<int> value = parse_number<int>(text);
    if (value && *value >= min && *value <= max) return *value;
    return invalid_value(text, concat("expected an integer from ", min, " to ", max));
  });
}

// Makes a setter for an option that is accepted because torchrun has it, and has no effect.
// `check` checks its text. No remark is made at the start: with any text that `check` accepts,
// the job runs as it would under torchrun.
template <class Check>
Setter without_effect(Check check) {
  return [=](LaunchOptions&, const std::string& text) -> Result<void> {
    const auto checked = check(text);
    if (!checked) return checked.error();
    return {};
  };
}

// Makes an option that asks for something instead of running a job.
OptionSpec command_option(const char* name, const char* help, const char* example,
                          LaunchCommand what) {
  return {.name = name,
          .help = help,
          .example = example,
          .set = [what](LaunchOptions& options, const std::string& text) -> Result<void> {
            const Result<bool> wanted = parse_switch(text);
            if (!wanted) return wanted.error();
            if (*wanted) options.command = what;
            return {};
          },
          .where = OptionSpec::Where::kCommandLineOnly};
}

// Checks a list of signals, each of which must end a job here, too.
Result<void> check_signals(const std::string& text) {
  for (const std::string_view name : split(text, ',')) {
    const std::optional<int> signal = signal_by_name(name);
    if (!signal) return invalid_value(name, "expected signals, such as SIGTERM,SIGINT");
    if (std::ranges::count(kPassedSignals, *signal) == 0) {
      return invalid_value(name,
                           "expected signals that end a job; with --checkpoint-signal workers save "
                           "and exit");
    }
  }
  return {};
}

// Returns a check for one of the words that torchrun knows. `instead`: what to do if it is
// another one.
auto check_word(std::vector<std::string> words, const char* instead) {
  return [words = std::move(words), instead](const std::string& text) -> Result<void> {
    if (std::ranges::count(words, text) > 0) return {};
    return invalid_value(text, instead);
  };
}

// Makes a setter for an option that may be repeated: adds what `parse` makes of each text.
template <class T, class Parse>
Setter adder(std::vector<T> LaunchOptions::*member, Parse parse) {
  return [=](LaunchOptions& options, const std::string& text) -> Result<void> {
    auto value = parse(text);
    if (!value) return value.error();
    (options.*member).push_back(std::move(*value));
    return {};
  };
}

// Parses --env. A name alone stands for the variable of this ddprun.
Result<std::pair<std::string, std::string>> parse_env(const std::string& text) {
  const char* const value = text.empty() ? nullptr : std::getenv(text.c_str());
  return parse_variable(value ? text + "=" + value : text);
}

Result<Duration> parse_connect_timeout(const std::string& text) {
  const Result<Duration> time = parse_seconds(text);
  if (!time || *time > Duration::zero()) return time;
  return invalid_value(text, "expected more than 0 seconds");
}

OptionSpec with_letter(const char* letter, OptionSpec option) {
  option.short_name = letter;
  return option;
}

std::vector<OptionSpec> in_groups(
    std::vector<std::pair<std::string, std::vector<OptionSpec>>> groups) {
  std::vector<OptionSpec> table;
  for (auto& [group, options] : groups) {
    for (OptionSpec& option : options) {
      option.group = group;
      table.push_back(std::move(option));
    }
  }
  return table;
}

std::vector<OptionSpec> make_table() {
  constexpr int kMaxInt = 1 << 30;
  const LaunchOptions standard;
  const std::vector<OptionSpec> workers{
      {"nproc-per-node", "N", "workers on this node: a number, cpu, gpu or auto",
       "--nproc-per-node=8", setter(&LaunchOptions::slots, parse_slots),
       std::to_string(standard.slots.number)},
      {"max-restarts", "N", "restarts of the whole job; each starts all workers again",
       "--max-restarts=3", integer_into(&LaunchOptions::max_restarts, 0, kMaxInt),
       std::to_string(standard.max_restarts)},
      {"restart-window", "SECONDS", "--max-restarts counts only the restarts of the last SECONDS",
       "--restart-window=3600",
       part_into(&LaunchOptions::restart_rules, &RestartRules::window, parse_seconds)},
      {"no-restart-on", "CODES",
       "exit codes of the first failed worker (128+n for signal n) that end the job, even if "
       "restarts are left",
       "--no-restart-on=2,64-78",
       part_into(&LaunchOptions::restart_rules, &RestartRules::final_codes, parse_code_ranges)},
      {"restart-on-progress", "",
       "when workers report a later step than that of the last failure, all restarts are available "
       "again; the third failure in a row at one step ends the job",
       "--max-restarts=3 --restart-on-progress",
       part_into(&LaunchOptions::restart_rules, &RestartRules::on_progress, parse_switch)},
      with_letter("m", {"module", "", "the program is a Python module", "-m package.train",
                        switch_into(&LaunchOptions::module)}),
      {"no-python", "", "execute the program directly, also when it is a .py file",
       "--no-python ./train.py", switch_into(&LaunchOptions::no_python)},
      {"role", "NAME", "name of the workers' role, for ROLE_NAME and torchrun's prefix",
       "--role=trainer", text_into(&LaunchOptions::role), standard.role},
      {"shutdown-grace", "SECONDS", "time between the first signal to workers and SIGKILL",
       "--shutdown-grace=10", setter(&LaunchOptions::grace, parse_seconds),
       in_seconds(kDefaultGrace) + ", under srun 5 less than Slurm's KillWait"},
      {"shutdown-timeout", "SECONDS", "torchrun's name for --shutdown-grace",
       "--shutdown-timeout=120", setter(&LaunchOptions::shutdown_timeout, parse_seconds)},
      {"hang-timeout", "SECONDS",
       "workers fail if they stay in one collective for this time, or do nothing after they have "
       "reported a step (default: no check)",
       "--hang-timeout=600", setter(&LaunchOptions::hang_timeout, parse_seconds)},
      {.name = "checkpoint-signal",
       .placeholder = "SIGNAL",
       .help =
           "signal at which workers of ddprun's library save and exit; Slurm and others can send "
           "it before a time limit or a preemption. The exit code is then 75: start the job "
           "again",
       .example = "--checkpoint-signal=USR1",
       .set = setter(&LaunchOptions::checkpoint_signal, parse_checkpoint_signal),
       .choices = {"USR1", "USR2", "TERM"}},
      {"requeue", "N",
       "in a job of Slurm: workers save and exit before the time limit, and the job is requeued, "
       "at most N times (--checkpoint-signal is USR1 unless it is given)",
       "--requeue=10", integer_into(&LaunchOptions::requeue, 0, kMaxInt)},
      {"save-before-end", "SECONDS",
       "how long before the time limit of a job of Slurm the workers are asked to save (at most "
       "half of the job's time)",
       "--save-before-end=300", setter(&LaunchOptions::save_before_end, parse_seconds),
       "with --requeue " + in_seconds(kDefaultSaveBeforeEnd)},
      {"monitor-interval", "SECONDS",
       "accepted, no effect: the kernel reports the end of a worker at once",
       "--monitor-interval=0.1", without_effect(parse_seconds)},
      {"signals-to-handle", "SIGNALS",
       "accepted, no effect: SIGTERM, SIGINT, SIGHUP and SIGQUIT always end the job, SIGUSR1 and "
       "SIGUSR2 are passed on",
       "--signals-to-handle=SIGTERM,SIGINT", without_effect(check_signals)},
      {"start-method", "METHOD",
       "accepted, no effect: workers are executed programs, not forks of an interpreter",
       "--start-method=spawn",
       without_effect(
           check_word({"spawn", "fork", "forkserver"}, "expected spawn, fork or forkserver"))},
      {"run-path", "", "the program is a Python script, whatever its file name", "--run-path train",
       switch_into(&LaunchOptions::run_path)},
      {"virtual-local-rank", "",
       "each worker has LOCAL_RANK 0 and sees one GPU, its own of CUDA_VISIBLE_DEVICES",
       "--virtual-local-rank", switch_into(&LaunchOptions::virtual_local_rank)},
      {"chdir", "DIR",
       "the working directory of workers; a relative path of the program or script is resolved "
       "there, as after cd",
       "--chdir=/scratch/run7", needed_into(&LaunchOptions::directory)},
      {.name = "env",
       .placeholder = "NAME[=VALUE]",
       .help = "set a variable for workers, without VALUE to its value here; overrides inherited "
               "variables and ddprun's own, except RANK and others that place a worker; may be "
               "repeated",
       .example = "--env=NCCL_DEBUG=INFO",
       .set = adder(&LaunchOptions::variables, parse_env),
       .repeats = true},
      {"umask", "OCTAL", "the file mode mask of workers", "--umask=027",
       setter(&LaunchOptions::file_mask, parse_umask)},
      {"bind", "POLICY",
       "CPUs of each worker, without overlap: core (equal parts of the cores), numa (within a NUMA "
       "node), gpu (next to its GPU), auto (gpu, numa or core, whichever fits) or none",
       "--bind=auto", word_into(&LaunchOptions::bind, kBindWords),
       std::string(enum_name(kBindWords, BindPolicy::kNone)), words(kBindWords)},
      {"numa-binding", "POLICY",
       "torchrun's values for --bind: node and socket (shared by the workers there), exclusive (as "
       "--bind=auto), core-complex (a last-level cache)",
       "--numa-binding=node",
       word_into(&LaunchOptions::numa_binding, kNumaBindingWords, "; --bind has other values"), "",
       words(kNumaBindingWords)},
      {"gpu-visibility", "WHICH",
       "GPUs that each worker sees: all (its own is LOCAL_RANK), or own (it is device 0)",
       "--gpu-visibility=own", word_into(&LaunchOptions::gpu_visibility, kGpuVisibilityWords),
       std::string(enum_name(kGpuVisibilityWords, standard.gpu_visibility)),
       words(kGpuVisibilityWords)},
  };
  const std::vector<OptionSpec> nodes{
      {"standalone", "", "a job of one node (also the default without the options below)",
       "--standalone", switch_into(&LaunchOptions::standalone)},
      {"no-detect", "",
       "take nothing from the scheduler (default: one worker for each GPU or task of the "
       "allocation; also its nodes, unless options say where nodes meet)",
       "--no-detect", switch_into(&LaunchOptions::no_detect)},
      {"nnodes", "N|MIN:MAX",
       "nodes of the job; with MIN:MAX it continues while MIN nodes are there", "--nnodes=2:4",
       setter(&LaunchOptions::nodes, parse_nodes), std::to_string(standard.nodes.max)},
      {"hosts", "HOST[:N],...",
       "start ddprun over ssh on these hosts, with N workers each (default: --nproc-per-node), and "
       "show all output here. The directory and the program must be there, too",
       "--hosts=node0:4,me@node1:4", setter(&LaunchOptions::hosts, parse_hosts)},
      {"hostfile", "FILE",
       "as --hosts, from lines HOST [slots=N]; # begins a comment, as for mpirun and DeepSpeed",
       "--hostfile=hosts.txt", needed_into(&LaunchOptions::hostfile)},
      {"ssh", "COMMAND", "the ssh of --hosts, with options for it; it must not need a password",
       "--ssh='ssh -p 2222'", setter(&LaunchOptions::ssh, split_shell_words), "ssh"},
      {"connect-timeout", "SECONDS",
       "time for ssh to reach a host of --hosts and to start ddprun there", "--connect-timeout=30",
       setter(&LaunchOptions::connect_timeout, parse_connect_timeout),
       in_seconds(standard.connect_timeout)},
      {.name = "copy",
       .placeholder = "FILE",
       .help = "write this small file to the same path on all hosts of --hosts before the start; "
               "may be repeated",
       .example = "--copy=./train",
       .set = adder(&LaunchOptions::copies, parse_needed),
       .repeats = true},
      {"rdzv-endpoint", "HOST[:PORT],...",
       "address of the rendezvous service: the node with this address starts it, unless "
       "ddp-rendezvous runs there. Several: all of them are ddp-rendezvous with one --state",
       "--rdzv-endpoint=node0:29400", text_into(&LaunchOptions::rdzv_endpoint),
       "port " + std::to_string(kDefaultRdzvPort)},
      {"rdzv-id", "ID", "name of the job at the service", "--rdzv-id=$SLURM_JOB_ID",
       needed_into(&LaunchOptions::rdzv_id), standard.rdzv_id},
      {.name = "rdzv-backend",
       .placeholder = "NAME",
       .help = "c10d (uses --rdzv-endpoint), static (uses --master-addr) or etcd: the nodes elect "
               "the one that runs the service, at the etcd of --rdzv-endpoint",
       .example = "--rdzv-backend=c10d",
       .set = setter(&LaunchOptions::rdzv_backend, parse_backend),
       .choices = words(kRdzvBackendWords)},
      {"rdzv-conf", "K=V,...",
       "join_timeout, last_call_timeout: seconds to wait for MIN, then for MAX nodes",
       "--rdzv-conf=join_timeout=600", setter(&LaunchOptions::rdzv_conf, parse_rdzv_conf)},
      {"on-join", "WHEN",
       "when a new node joins a running job with room for it: now (with a new generation), at the "
       "next checkpoint that workers announce, or with the next restart",
       "--on-join=checkpoint", word_into(&LaunchOptions::on_join, kOnJoinWords),
       std::string(enum_name(kOnJoinWords, standard.on_join)), words(kOnJoinWords)},
      {"node-failures", "N",
       "a node whose workers were the first to fail in N generations is replaced by a spare, if "
       "there is one",
       "--node-failures=2", integer_into(&LaunchOptions::node_failures, 1, kMaxInt),
       std::to_string(standard.node_failures)},
      {"node-check", "",
       "before each generation, check each node for less than 0.2 s: core, memory, disk, loopback, "
       "links; and its GPUs. One that is not fit gives way to a spare. Other limits: "
       "--node-check=memory=4000,link=1000 (MB/s)",
       "--node-check", setter(&LaunchOptions::node_check, parse_node_check)},
      {"lease", "SECONDS",
       "a node that is silent for this time is lost; it ends its own workers after four fifths of "
       "the time. Used if this host starts the service; ddp-rendezvous has its own",
       "--lease=20", part_into(&LaunchOptions::times, &LeaseTimes::lease, parse_lease),
       in_seconds(standard.times.lease)},
      {"heartbeat-interval", "SECONDS",
       "time between heartbeats of a node, from a fiftieth to a quarter of the lease (default: a "
       "fifth). Used where --lease is",
       "--heartbeat-interval=0.5",
       part_into(&LaunchOptions::times, &LeaseTimes::given_heartbeat, parse_seconds)},
      {"node-rank", "N", "rank of this node; without it nodes are ordered by name", "--node-rank=0",
       integer_into(&LaunchOptions::node_rank, 0, kMaxInt)},
      {"local-addr", "ADDR",
       "an address, network or interface at which other nodes reach this node (default: the "
       "address from which it reaches the service)",
       "--local-addr=10.1.0.0/16", text_into(&LaunchOptions::local_addr)},
      {"port-range", "FIRST-LAST",
       "ports to listen on, for firewalls: one for the store, one for each worker of ddprun's "
       "library",
       "--port-range=29500-29599", setter(&LaunchOptions::ports, parse_port_range)},
      {"rdzv-key-file", "FILE",
       "file with the key that all nodes and the service must have, a line of 16 characters or "
       "more (default: DDPRUN_RDZV_KEY)",
       "--rdzv-key-file=$HOME/.ddprun-key", needed_into(&LaunchOptions::rdzv_key_file)},
      {"munge-socket", "PATH|none",
       "socket of munged, which authenticates agents if there is no key (default: munge's own); "
       "none: do not use munge",
       "--munge-socket=/run/munge/munge.socket.2", needed_into(&LaunchOptions::munge_socket)},
      {"rdzv-tls-cert", "FILE",
       "certificate of this node, in PEM, with its intermediate certificates: needed if this host "
       "starts the service, or if the service asks for one",
       "--rdzv-tls-cert=/etc/ddprun/tls/tls.crt", needed_into(&LaunchOptions::rdzv_tls_cert)},
      {"rdzv-tls-key", "FILE", "its private key, in PEM without a passphrase",
       "--rdzv-tls-key=/etc/ddprun/tls/tls.key", needed_into(&LaunchOptions::rdzv_tls_key)},
      {"rdzv-tls-ca", "FILE",
       "use TLS, and accept a service whose certificate comes from this authority; 'system' for "
       "those that this host trusts. A service that this host starts also asks the other nodes for "
       "such a certificate",
       "--rdzv-tls-ca=/etc/ddprun/tls/ca.crt", needed_into(&LaunchOptions::rdzv_tls_ca)},
      {"require-auth", "",
       "refuse to join other nodes without a key, munge, or certificates on both sides",
       "--require-auth", switch_into(&LaunchOptions::require_auth)},
      {"store-allow", "NET,...",
       "addresses and networks that may use the store, besides the nodes of the job",
       "--store-allow=10.1.0.0/16", needed_into(&LaunchOptions::store_allow)},
      {"worker-store", "WHO",
       "who serves the workers' store: the agent of rank 0's node, or rank0 itself (needed for a "
       "PyTorch without libuv)",
       "--worker-store=rank0", word_into(&LaunchOptions::worker_store, kWorkerStoreWords), "agent",
       words(kWorkerStoreWords)},
      {"master-addr", "ADDR", "static: address of node rank 0, which serves everything",
       "--master-addr=10.0.0.1", text_into(&LaunchOptions::master_addr)},
      {"master-port", "PORT", "static: port of node rank 0", "--master-port=29500",
       integer_into(&LaunchOptions::master_port, 0, 65535), std::to_string(kDefaultMasterPort)},
  };
  const std::vector<OptionSpec> output{
      {"log-dir", "DIR", "keep log and error files in DIR/<id>_<random>/attempt_N/<local rank>/",
       "--log-dir=logs", text_into(&LaunchOptions::log_dir)},
      {"local-ranks-filter", "RANKS",
       "the console gets the output of these local ranks only; log files are not affected",
       "--local-ranks-filter=0", setter(&LaunchOptions::shown_ranks, parse_local_ranks)},
      {"log-max-bytes", "N[K|M|G]",
       "size at which a log file is renamed to <name>.1, in place of the previous one, and a new "
       "one is begun; at least 4096 bytes",
       "--log-max-bytes=100M", setter(&LaunchOptions::log_max_bytes, parse_log_bytes),
       "0, no limit"},
      {"pty", "", "each worker writes to its own terminal, and its programs behave as on one",
       "--pty", switch_into(&LaunchOptions::pty)},
      {"stdin", "", "rank 0 reads ddprun's standard input (default: every worker's is /dev/null)",
       "--stdin", switch_into(&LaunchOptions::passes_stdin)},
      {"quiet", "",
       "ddprun itself prints only warnings and errors; workers' output is not affected", "--quiet",
       switch_into(&LaunchOptions::quiet)},
      {"verbose", "",
       "ddprun also prints what it starts, what the service orders, and which signals it sends",
       "--verbose", switch_into(&LaunchOptions::verbose)},
      {"log-format", "FORMAT",
       "text, or json: each line on the console, of ddprun or of a worker, is a JSON object",
       "--log-format=json", word_into(&LaunchOptions::log_format, kLogFormatWords),
       std::string(enum_name(kLogFormatWords, standard.log_format)), words(kLogFormatWords)},
      {"event-log-handler", "NAME",
       "accepted with the value null; for events see /status.json and /metrics of the service",
       "--event-log-handler=null",
       without_effect(check_word({"null"},
                                 "expected null; for events see /status.json and /metrics of the "
                                 "service, docs/how-to/monitoring.md"))},
      {"logs-specs", "NAME", "accepted with the value default; see -r, -t and --log-dir",
       "--logs-specs=default",
       without_effect(check_word({"default"}, "expected default; see -r, -t and --log-dir"))},
      with_letter("r", {"redirects", "STREAMS",
                        "into log files only: 1 stdout, 2 stderr, 3 both, or RANK:N,...", "-r 3",
                        setter(&LaunchOptions::redirects, parse_streams)}),
      with_letter("t",
                  {"tee", "STREAMS", "into log files and to the console, with torchrun's prefix",
                   "-t 0:3,1:2", setter(&LaunchOptions::tee, parse_streams)}),
      {"log-line-prefix-template", "TEXT",
       "prefix of each line of -t, with ${role_name}, ${rank}, ${local_rank} and ${hostname}; else "
       "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE",
       "--log-line-prefix-template='${hostname}:${rank}: '", text_into(&LaunchOptions::line_prefix),
       "[${role_name}${local_rank}]:"},
      {"report-file", "FILE",
       "write the verdict of the job and of each failed generation as JSON "
       "(docs/reference/verdicts.md)",
       "--report-file=report.json", needed_into(&LaunchOptions::report_file)},
      {"on-end", "COMMAND",
       "run this shell command once when the job is over, on the first node of the job, for 30 s "
       "at most; it reads the report of --report-file from stdin, and DDPRUN_HEADLINE has a line "
       "about the end",
       "--on-end='mail -s \"$DDPRUN_HEADLINE\" me'", needed_into(&LaunchOptions::on_end)},
      {"on-failure", "COMMAND",
       "as --on-end, but only if the exit code of the job is neither 0 nor 75 (saved)",
       "--on-failure='mail -s \"$DDPRUN_HEADLINE\" me'", needed_into(&LaunchOptions::on_failure)},
  };
  const std::vector<OptionSpec> general{
      {.name = "config",
       .placeholder = "FILE",
       .help = "JSON object with any option by its name, and 'program' and 'args'; the command "
               "line and PET_ variables override it",
       .example = "--config=job.json",
       .set = needed_into(&LaunchOptions::config_file),
       .where = OptionSpec::Where::kNotInFile},
      command_option("print-config",
                     "show the value of each option and where it comes from; start nothing",
                     "--print-config", LaunchCommand::kPrintConfig),
      command_option("dry-run", "print the plan and the environment of each worker; start nothing",
                     "--dry-run", LaunchCommand::kDryRun),
      command_option("show-binding",
                     "draw this machine and where --bind puts each worker; start nothing",
                     "--show-binding", LaunchCommand::kShowBinding),
      command_option("version", "versions of ddprun and its protocol", "--version",
                     LaunchCommand::kVersion),
      with_letter("h", command_option("help", "this text", "-h", LaunchCommand::kHelp)),
  };
  return in_groups(
      {{"Workers", workers}, {"Nodes", nodes}, {"Output", output}, {"General", general}});
}

}  // namespace

const std::vector<OptionSpec>& option_table() {
  static const std::vector<OptionSpec> table = make_table();
  return table;
}

std::span<const std::string_view> torchrun_options() {
  static constexpr std::array<std::string_view, 32> kNames{
      "nnodes",
      "nproc-per-node",
      "rdzv-backend",
      "rdzv-endpoint",
      "rdzv-id",
      "rdzv-conf",
      "standalone",
      "max-restarts",
      "monitor-interval",
      "start-method",
      "event-log-handler",
      "role",
      "module",
      "no-python",
      "run-path",
      "log-dir",
      "redirects",
      "tee",
      "local-ranks-filter",
      "duplicate-stdout-filters",
      "duplicate-stderr-filters",
      "node-rank",
      "master-addr",
      "master-port",
      "local-addr",
      "logs-specs",
      "numa-binding",
      "signals-to-handle",
      "virtual-local-rank",
      "shutdown-timeout",
      "log-line-prefix-template",
      "print-completion",
  };
  return kNames;
}

const RefusedOption* find_refused(const std::string& name) {
  static const std::vector<RefusedOption> table{
      {"duplicate-stdout-filters", "give -t 1 and search its files"},
      {"duplicate-stderr-filters", "give -t 2 and search its files"},
      {"print-completion", "use ddprun completion bash, or zsh"},
  };
  const auto found = std::ranges::find(table, name, &RefusedOption::name);
  return found == table.end() ? nullptr : &*found;
}

const std::vector<std::string>& option_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const OptionSpec& spec : option_table()) all.push_back(spec.name);
    return all;
  }();
  return names;
}

const OptionSpec* find_option(const std::string& given) {
  return find_written(option_table(), given);
}

std::string with_underscores(std::string name) {
  std::ranges::replace(name, '-', '_');
  return name;
}

std::string with_dashes(std::string name) {
  std::ranges::replace(name, '_', '-');
  return name;
}

std::string environment_name(const std::string& name) {
  std::string upper = with_underscores(name);
  std::ranges::transform(upper, upper.begin(), [](unsigned char c) { return std::toupper(c); });
  return "PET_" + upper;
}

}  // namespace ddprun
