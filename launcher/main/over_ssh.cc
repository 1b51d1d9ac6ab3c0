#include "launcher/main/over_ssh.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <utility>

#include "base/concat.h"
#include "base/counted.h"
#include "base/random_id.h"
#include "base/read_all.h"
#include "base/signal_names.h"
#include "base/unique_fd.h"
#include "base/version.h"
#include "base/worker_env.h"
#include "launcher/agent/end_command.h"
#include "launcher/process/core/shell_words.h"
#include "launcher/process/own_program.h"

namespace ddprun {
namespace {

constexpr std::size_t kMostHostfileBytes = 4 << 20;
constexpr std::size_t kMostCopiedBytes = 64 << 20;

struct Contradiction {
  std::string_view option;
  std::string_view why;
};
constexpr std::string_view kServes = "the first host serves the rendezvous, at a port of its own";
constexpr auto kContradictions = std::to_array<Contradiction>({
    {"standalone", "--hosts makes a job of several nodes"},
    {"node-rank", "the hosts have node ranks in the order in which they are given"},
    {"rdzv-endpoint", kServes},
    {"master-addr", kServes},
    {"master-port", kServes},
    {"rdzv-key-file", "each job gets a key of its own, over ssh"},
    {"stdin", "ssh passes no input on to rank 0; let it read a file"},
});

// Options that are for this ddprun, or that each host gets in its own form.
constexpr auto kNotPassed = std::to_array<std::string_view>(
    {"hosts", "hostfile", "ssh", "copy", "connect-timeout", "config", "nnodes", "nproc-per-node",
     "env", "no-detect", "print-config", "dry-run", "show-binding", "version", "help"});

const OptionSetting* given(const CommandLine& line, std::string_view name) {
  const auto found = std::ranges::find_if(
      line.settings, [&](const OptionSetting& setting) { return setting.option->name == name; });
  const bool is_given = found != line.settings.end() && !found->texts.empty() &&
                        !found->texts.back().empty() &&
                        !(found->option->is_switch() &&
                          (found->texts.back() == "false" || found->texts.back() == "0"));
  return is_given ? &*found : nullptr;
}

// Returns how an error names the option: "--nnodes", "PET_NNODES" or "job.json: --nnodes".
std::string place_of(const OptionSetting& setting) {
  const std::string& name = setting.option->name;
  if (setting.source == environment_name(name)) return setting.source;
  const std::string option = "--" + name;
  return setting.source == "command line" ? option : concat(setting.source, ": ", option);
}

Result<std::vector<HostEntry>> hosts_of(const CommandLine& line) {
  const LaunchOptions& options = line.options;
  if (options.hostfile.empty()) return options.hosts;
  if (!options.hosts.empty())
    return invalid_argument("cannot be used with --hosts: give the hosts in one of them")
        .within(place_of(*given(line, "hostfile")));
  const std::string doing = "--hostfile: read " + options.hostfile;
  const UniqueFd file(open(options.hostfile.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return system_error(doing, errno);
  std::string text(kMostHostfileBytes + 1, '\0');
  const ssize_t size = read_all(file.get(), text.data(), text.size());
  if (size < 0) return system_error(doing, errno);
  if (static_cast<std::size_t>(size) > kMostHostfileBytes)
    return invalid_argument("it has more than 4 MiB").within("--hostfile: " + options.hostfile);
  text.resize(static_cast<std::size_t>(size));
  Result<std::vector<HostEntry>> hosts = parse_hostfile(text);
  if (!hosts) return std::move(hosts).error().within("--hostfile: " + options.hostfile);
  return hosts;
}

Result<void> check(const CommandLine& line, int nodes) {
  for (const auto& [option, why] : kContradictions) {
    if (const OptionSetting* setting = given(line, option))
      return invalid_argument(concat("cannot be used with --hosts: ", why))
          .within(place_of(*setting));
  }
  const LaunchOptions& options = line.options;
  if (options.rdzv_backend == RdzvBackend::kStatic || is_etcd(options.rdzv_backend))
    return invalid_argument(concat(enum_name(kRdzvBackendWords, *options.rdzv_backend),
                                   " cannot be used with --hosts: ", kServes))
        .within(place_of(*given(line, "rdzv-backend")));
  if (const OptionSetting* setting = given(line, "nnodes");
      setting && options.nodes != NodeRange{nodes, nodes}) {
    const char* remedy = options.nodes.min == options.nodes.max
                             ? "leave --nnodes out"
                             : "for an elastic job start ddprun on each host, with --rdzv-endpoint";
    return invalid_value(setting->texts.back(),
                         concat("--hosts names ", counted(nodes, "host"), "; ", remedy))
        .within(place_of(*setting));
  }
  // Each far end checks its options. What is wrong for all of them is said once, and at once.
  LaunchOptions of_node = options;
  of_node.nodes = {nodes, nodes};
  if (nodes > 1) of_node.rdzv_endpoint = "host:1";
  if (Result<Rendezvous> plan = plan_rendezvous(of_node); !plan) return plan.error();
  return check_output(of_node);
}

// Returns the directory by the name that the user sees, which other hosts are likelier to have.
std::string own_directory() {
  const std::string named = environment_variable("PWD").value_or("");
  struct stat one {};
  struct stat other {};
  if (named.starts_with('/') && stat(named.c_str(), &one) == 0 && stat(".", &other) == 0 &&
      one.st_dev == other.st_dev && one.st_ino == other.st_ino)
    return named;
  std::error_code error;
  return std::filesystem::current_path(error).string();
}

// Only node 0 says more than warnings and errors: the others would say the same.
std::vector<std::string> arguments_of(const CommandLine& line, const HostEntry& host,
                                      bool is_first) {
  const LaunchOptions& options = line.options;
  std::vector<std::string> arguments;
  if (!is_first && !options.verbose) arguments.push_back("--quiet");
  if (const OptionSetting* setting = given(line, "nproc-per-node"); host.slots || setting) {
    arguments.push_back("--nproc-per-node=" +
                        (host.slots ? std::to_string(*host.slots) : setting->texts.back()));
  }
  for (const OptionSetting& setting : line.settings) {
    const std::string& name = setting.option->name;
    if (setting.texts.empty() || std::ranges::count(kNotPassed, name) > 0) continue;
    const std::size_t first = setting.option->repeats ? 0 : setting.texts.size() - 1;
    for (std::size_t i = first; i < setting.texts.size(); ++i)
      arguments.push_back(concat("--", name, "=", setting.texts[i]));
  }
  for (const auto& [name, value] : options.variables)
    arguments.push_back(concat("--env=", name, "=", value));
  arguments.insert(arguments.end(), {"--no-detect", "--", options.program});
  arguments.insert(arguments.end(), options.args.begin(), options.args.end());
  return arguments;
}

Result<void> add_copies(const std::vector<std::string>& paths, HeadJob& job) {
  for (const std::string& path : paths) {
    auto copy = read_copy(path);
    if (!copy) return copy.error();
    job.plan.files.push_back(std::move(copy->first));
    job.files += copy->second;
    if (job.files.size() > kMostCopiedBytes)
      return invalid_value(path, "the files of --copy have more than 64 MiB; copy them before")
          .within("--copy");
  }
  return {};
}

// Returns the option without the value of a variable, which may be a password.
std::string without_value_of_env(const std::string& option) {
  constexpr std::string_view kEnv = "--env=";
  return option.starts_with(kEnv) ? option.substr(0, option.find('=', kEnv.size())) : option;
}

}  // namespace

Result<HeadJob> plan_over_ssh(const CommandLine& line) {
  const LaunchOptions& options = line.options;
  const Result<std::vector<HostEntry>> hosts = hosts_of(line);
  if (!hosts) return hosts.error();
  const int nodes = static_cast<int>(hosts->size());
  if (const Result<void> fits = check(line, nodes); !fits) return fits.error();
  HeadJob job;
  for (const HostEntry& host : *hosts) {
    job.options.hosts.push_back(host.name);
    job.arguments.push_back(arguments_of(line, host, job.arguments.empty()));
  }
  job.options.version = kVersion;
  job.options.program = own_program();
  job.options.connect_timeout = options.connect_timeout;
  job.options.grace = options.shutdown_timeout.value_or(options.grace.value_or(kDefaultGrace));
  for (const std::string& command : {options.on_end, options.on_failure})
    if (!command.empty()) job.options.end_commands += kEndCommandTime;
  job.ssh = {.words = options.ssh,
             .program = job.options.program,
             .connect_timeout = options.connect_timeout,
             .lease = options.times.lease};
  job.plan.mark = random_hex(16);
  job.plan.key = random_hex(32);
  job.plan.nodes = nodes;
  job.plan.directory = own_directory();
  job.plan.environment = options.variables;
  job.plan.local_addr = options.local_addr;
  job.plan.ports = options.ports;
  if (const Result<void> added = add_copies(options.copies, job); !added) return added.error();
  job.signals.assign(kPassedSignals.begin(), kPassedSignals.end());
  job.shows_ssh = options.verbose;
  job.is_quiet = options.quiet;
  return job;
}

std::string ssh_text(const HeadJob& job) {
  const std::size_t count = job.options.hosts.size();
  std::string text = concat("ddprun: ", counted(count, "host"), " over ssh, in ",
                            in_shell_words(job.plan.directory), "\n");
  for (std::size_t i = 0; i < count; ++i) {
    text += concat("\nnode ", i, " on ", job.options.hosts[i], ": ddprun");
    bool is_option = true;
    for (const std::string& word : job.arguments[i]) {
      is_option = is_option && word != "--";
      text += " " + in_shell_words(is_option ? without_value_of_env(word) : word);
    }
    text += "\n ";
    for (const std::string& word : ssh_command(job.ssh, job.options.hosts[i]))
      text += " " + in_shell_words(word);
    text += "\n";
  }
  return text;
}

}  // namespace ddprun
