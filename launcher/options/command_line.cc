#include "launcher/options/command_line.h"

#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <map>
#include <optional>
#include <utility>

#include "base/concat.h"
#include "base/counted.h"
#include "base/host_port.h"
#include "base/missing_value.h"
#include "base/nearest_word.h"
#include "base/parse_number.h"
#include "base/small_file.h"
#include "base/worker_env.h"
#include "launcher/cluster/core/cluster_plan.h"
#include "launcher/cluster/core/pod_names.h"
#include "launcher/machine/machine.h"
#include "launcher/options/config_file.h"
#include "launcher/process/command_output.h"

namespace ddprun {
namespace {

Error refuse_torchruns(const std::string& given, const RefusedOption& refused) {
  return invalid_argument(given + " of torchrun is not supported: " + refused.instead);
}

Error unknown_option(const std::string& given) {
  const std::string name = with_dashes(given);
  const std::string bare = name.substr(std::min(name.find_first_not_of('-'), name.size()));
  if (const RefusedOption* refused = find_refused(bare)) {
    return refuse_torchruns("--" + bare, *refused);
  }
  return invalid_argument("unknown option " + name +
                          guess_at_option(name, option_names(), "; ddprun --help lists them"));
}

constexpr std::string_view kCommandLine = "command line";  // a source of settings

struct Scanned {
  std::map<std::string, std::vector<std::string>> texts = {};  // by the option's name
  std::vector<std::string> rest = {};                          // the program and its arguments
};

Result<Scanned> scan(const std::vector<std::string>& arguments) {
  Scanned scanned;
  std::size_t i = 0;
  for (; i < arguments.size() && arguments[i].starts_with('-') && arguments[i].size() > 1; ++i) {
    std::string argument = arguments[i];
    if (argument == "--") {
      ++i;
      break;
    }
    const std::size_t equals = argument.find('=');
    const Result<const OptionSpec*> named = option_of(argument.substr(0, equals));
    if (!named) return named.error();
    const OptionSpec* option = *named;
    std::optional<std::string> text;
    if (option && equals != std::string::npos) text = argument.substr(equals + 1);
    // One dash may have several letters. The last one may have its value behind it: -mr3.
    while (!option) {
      const OptionSpec* const first = find_option(argument.substr(0, 2));
      if (!first) return unknown_option(argument);
      argument.erase(1, 1);
      if (first->is_switch()) {
        scanned.texts[first->name].push_back("true");
        option = argument.size() == 2 ? find_option(argument) : nullptr;
      } else {
        option = first;
        text = argument.substr(1);
      }
    }
    if (option->is_switch()) {
      if (!text) text = "true";
      // An unset variable in a script leaves "--name=", which is refused even before --help.
      LaunchOptions unused;
      if (text->empty()) return option->set(unused, "").error().within("--" + option->name);
    } else if (!text) {
      if (++i == arguments.size()) return missing_value("--" + option->name, option->placeholder);
      text = arguments[i];
    }
    scanned.texts[option->name].push_back(std::move(*text));
  }
  scanned.rest.assign(arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
  return scanned;
}

// Sources: the places that the value of an option may come from. The first one that has a value
// counts.
struct Sources {
  Scanned line;
  ConfigFile file = {};
  std::string file_option = {};  // --config or its variable, whichever named the file
  // Of the scheduler, by the option's name; and what the scheduler calls its job.
  std::map<std::string, std::string> cluster_texts = {};
  std::string cluster = {};

  OptionSetting setting_of(const OptionSpec& spec) const {
    using Where = OptionSpec::Where;
    if (const auto found = line.texts.find(spec.name); found != line.texts.end()) {
      return {&spec, found->second, std::string(kCommandLine)};
    }
    const std::string variable = environment_name(spec.name);
    if (const char* text = std::getenv(variable.c_str());
        text && spec.where != Where::kCommandLineOnly) {
      return {&spec, {text}, variable};
    }
    if (const auto found = file.texts.find(spec.name); found != file.texts.end()) {
      return {&spec, found->second, file.path};
    }
    if (const auto found = cluster_texts.find(spec.name); found != cluster_texts.end()) {
      return {&spec, {found->second}, cluster};
    }
    return {&spec, {}, "default"};
  }
  // Empty: it is not given, or empty.
  std::string text_of(const std::string& name) const {
    const OptionSetting setting = setting_of(*find_option("--" + name));
    return setting.texts.empty() ? "" : setting.texts.back();
  }
};

// Returns how an error names the source of a value.
std::string place_of(const OptionSetting& setting, const Sources& sources) {
  const std::string& name = setting.option->name;
  if (setting.source == kCommandLine) return "--" + name;
  if (setting.source == environment_name(name)) return setting.source;
  if (setting.source == sources.cluster) return setting.source + ": --" + name;
  return sources.file_option + ": " + setting.source + ": '" + name + "'";
}

Result<void> apply(const OptionSetting& setting, const Sources& sources, LaunchOptions& options) {
  const OptionSpec& spec = *setting.option;
  const std::size_t first = spec.repeats || setting.texts.empty() ? 0 : setting.texts.size() - 1;
  for (std::size_t i = first; i < setting.texts.size(); ++i) {
    if (Result<void> set = spec.set(options, setting.texts[i]); !set) {
      return std::move(set).error().within(place_of(setting, sources));
    }
  }
  return {};
}

// Checks PET_ variables that name no option. Fails for options of torchrun's that ddprun
// refuses, and adds a remark for typing errors.
Result<void> check_variables(LaunchOptions& options) {
  for (char** entry = environ; *entry; ++entry) {
    const std::string_view text(*entry);
    const std::string variable(text.substr(0, text.find('=')));
    constexpr std::string_view kPrefix = "PET_";
    if (!variable.starts_with(kPrefix)) continue;
    std::string name = with_dashes(variable.substr(kPrefix.size()));
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    if (find_option("--" + name)) continue;
    if (const RefusedOption* refused = find_refused(name)) {
      return refuse_torchruns(variable, *refused);
    }
    if (const std::string nearest = nearest_word(name, option_names()); !nearest.empty()) {
      options.remarks.push_back(variable + " has no effect: did you mean " +
                                environment_name(nearest) + "?");
    }
  }
  return {};
}

// Wiring: how the user says that the nodes meet.
struct Wiring {
  bool is_alone = false;             // --standalone
  bool is_by_hand = false;           // by --rdzv-endpoint and the like
  bool is_with_others = false;       // by hand, at an address that others reach
  bool has_node_rank = false;        // --node-rank
  std::optional<NodeRange> nodes{};  // --nnodes

  bool has_one_node() const { return nodes && nodes->max == 1; }
};

// A wrong text is reported when the option is applied. torchrun's --rdzv-backend=c10d does not say
// how the nodes meet.
Wiring wiring_of(const Sources& sources) {
  Wiring wiring;
  const std::string standalone = sources.text_of("standalone");
  wiring.is_alone = !standalone.empty() && standalone != "false" && standalone != "0";
  const auto backend = parse_enum(kRdzvBackendWords, sources.text_of("rdzv-backend"));
  wiring.is_by_hand = backend == RdzvBackend::kStatic || is_etcd(backend) ||
                      !sources.text_of("rdzv-endpoint").empty() ||
                      !sources.text_of("master-addr").empty() ||
                      !sources.text_of("master-port").empty();
  for (const char* name : {"rdzv-endpoint", "master-addr"}) {
    const std::string text = sources.text_of(name);
    const Result<HostPort> address = parse_host_port(text, kDefaultRdzvPort);
    wiring.is_with_others |= !text.empty() && address && !is_loopback_host(address->host);
  }
  wiring.is_with_others |= is_etcd(backend);
  wiring.has_node_rank = !sources.text_of("node-rank").empty();
  if (const Result<NodeRange> given = parse_nodes(sources.text_of("nnodes"))) wiring.nodes = *given;
  return wiring;
}

// Returns whether this process belongs to the command of its container: a shell that a person types
// into, and kubectl exec, give each command a process group of its own.
bool is_of_container() { return is_in_pod(environment_variable) && getpgrp() == getpgid(1); }

// Returns whether a person typed this command into a shell. srun --pty, and a pod with tty: true,
// give a terminal to what they start, too.
bool is_typed() {
  return isatty(STDIN_FILENO) == 1 && !is_of_container() &&
         first_line_of("/proc/" + std::to_string(getppid()) + "/comm") != "slurmstepd";
}

Error refuse_tasks(const ClusterPlan& plan) {
  return invalid_argument(concat("it started ", plan.tasks,
                                 " tasks on a node, but one ddprun starts all workers",
                                 " of a node: ", plan.remedy,
                                 " ddprun --nproc-per-node=", plan.tasks,
                                 " ... (if only one of the tasks is ddprun, add --no-detect)"))
      .within(plan.name);
}

// Asks for the number of nodes where no variable says it.
void ask_for_nodes(ClusterPlan& plan) {
  constexpr Duration kPatience = std::chrono::seconds(10);
  count_nodes(plan, plan.node_file.empty()
                        ? output_of(plan.node_count_command, Deadline(kPatience)).text
                        : text_of(plan.node_file));
}

// Decides what is taken from the plan. nullopt: nothing.
Result<std::optional<Taken>> decide_taken(const ClusterPlan& plan, const Wiring& wiring) {
  const bool is_wired = wiring.is_alone || wiring.is_by_hand;
  if (!plan.no_starter.empty()) {
    if (!is_wired && !wiring.has_one_node())
      return invalid_argument(plan.no_starter).within(plan.name);
    if (!plan.workers || plan.tasks > 1) return std::nullopt;
    return Taken::kWorkers;
  }
  if (!plan.starter.empty()) {
    if (!is_wired && !wiring.nodes && !wiring.has_node_rank) return Taken::kStarter;
    return plan.workers ? std::optional(Taken::kWorkers) : std::nullopt;
  }
  // Such a scheduler counts and orders the nodes. Only the user can say where they meet.
  const bool needs_endpoint = plan.nodes > 1 && plan.endpoint.host.empty();
  const bool is_own_job = wiring.is_alone || (plan.tasks > 1 && wiring.has_one_node());
  if (is_own_job || (wiring.is_by_hand && !needs_endpoint)) {
    const bool meets_others = wiring.is_with_others && !wiring.is_alone;
    if (plan.tasks > 1 && (meets_others || (wiring.nodes && !wiring.has_one_node())))
      return refuse_tasks(plan);
    // Each of several tasks has its own part of the GPUs.
    if (!plan.workers || plan.tasks > 1) return std::nullopt;
    return Taken::kWorkers;
  }
  // Tasks of a node meet by the job's id.
  if (plan.tasks > 1 && plan.job_id == kDefaultJobId) return refuse_tasks(plan);
  const bool meets = wiring.nodes ? !wiring.has_one_node() : plan.nodes > 1;
  if (meets && needs_endpoint && !wiring.is_by_hand) {
    std::string remedy = plan.endpoint_remedy;
    if (remedy.empty()) {
      remedy = "give --rdzv-endpoint=HOST:PORT with the host of one of them";
      if (plan.job_id == kDefaultJobId) remedy += ", and --rdzv-id=NAME";
    }
    return invalid_argument(concat("it has ", plan.nodes,
                                   " nodes, but does not say where they meet: ", remedy,
                                   " (for this node alone, add --nnodes=1)"))
        .within(plan.name);
  }
  if (plan.local_task > 0) return Taken::kWait;
  return meets ? Taken::kNodes : Taken::kOneNode;
}

// Takes from the scheduler what is given nowhere else. Refuses what contradicts the scheduler.
Result<void> take_from_cluster(Sources& sources, LaunchOptions& options) {
  if (Result<void> set = apply(sources.setting_of(*find_option("--no-detect")), sources, options);
      !set) {
    return set;
  }
  const bool uses_ssh = !sources.text_of("hosts").empty() || !sources.text_of("hostfile").empty();
  if (options.no_detect || uses_ssh) return {};
  const Wiring wiring = wiring_of(sources);
  const bool is_wired = wiring.is_alone || wiring.is_by_hand;

  const bool typed = is_typed();
  Result<std::optional<ClusterPlan>> found = detect_cluster(environment_variable, typed);
  if (!found) return is_wired || wiring.has_one_node() ? Result<void>() : found.error();
  if (!*found) return {};
  ClusterPlan& plan = **found;
  if (plan.counts_gpus && sources.text_of("nproc-per-node").empty()) {
    const Result<int> gpus = count_slots({.kind = SlotCount::Kind::kGpus});
    if (gpus) plan.workers = *gpus;
  }
  if (plan.has_only_workers && !plan.workers) return {};
  if (plan.must_be_counted() && !is_wired && !wiring.has_one_node()) ask_for_nodes(plan);
  if (!plan.nodes_remedy.empty() && !wiring.nodes && !wiring.is_alone) {
    if (wiring.is_with_others) return invalid_argument(plan.nodes_remedy).within(plan.name);
    options.remarks.push_back(plan.name + ": trains alone: " + plan.nodes_remedy);
  }
  const Result<std::optional<Taken>> taken = decide_taken(plan, wiring);
  if (!taken) return taken.error();
  if (!*taken) return {};
  if (!is_wired && wiring.nodes && wiring.nodes->min > plan.nodes) {
    const std::string fact = typed && plan.nodes == 1
                                 ? "this shell has 1 node of " + plan.name
                                 : concat(plan.name, " has ", counted(plan.nodes, "node"));
    return invalid_value(to_text(*wiring.nodes), fact + "; with others, give --rdzv-endpoint")
        .within(place_of(sources.setting_of(*find_option("--nnodes")), sources));
  }
  // The service would refuse the node, and the others would wait for it.
  const std::optional<int> node_rank = parse_number<int>(sources.text_of("node-rank"));
  if (**taken == Taken::kNodes && node_rank && plan.node_rank.value_or(*node_rank) != *node_rank) {
    return invalid_value(std::to_string(*node_rank),
                         concat(plan.name, " says ", *plan.node_rank, ": leave --node-rank out"))
        .within(place_of(sources.setting_of(*find_option("--node-rank")), sources));
  }
  options.taken = **taken;
  options.cluster = plan;
  sources.cluster = plan.name;
  sources.cluster_texts = option_texts(plan, options.taken);
  // With spares and in elastic jobs the service orders the nodes.
  if (wiring.nodes && *wiring.nodes != NodeRange{plan.nodes, plan.nodes})
    sources.cluster_texts.erase("node-rank");
  return {};
}

// Takes the program from the command line, or else from the file.
void take_program(const Sources& sources, CommandLine& line) {
  LaunchOptions& options = line.options;
  const std::vector<std::string>& rest = sources.line.rest;
  if (!rest.empty()) {
    options.program = rest.front();
    options.args.assign(rest.begin() + 1, rest.end());
    line.program_source = kCommandLine;
    return;
  }
  options.program = sources.file.program;
  options.args = sources.file.args;
  line.program_source = options.program.empty() ? "default" : sources.file.path;
}

}  // namespace

Result<const OptionSpec*> option_of(const std::string& given) {
  if (const OptionSpec* exact = find_option(given)) return exact;
  if (!given.starts_with("--")) return nullptr;
  const std::string beginning = with_dashes(given).substr(2);
  std::vector<std::string> meant;
  for (const std::string_view name : torchrun_options()) {
    if (name == beginning) return unknown_option(given);  // a refused one
    if (name.starts_with(beginning)) meant.emplace_back(name);
  }
  if (meant.empty()) return unknown_option(given);
  if (meant.size() == 1) {
    if (const OptionSpec* option = find_option("--" + meant.front())) return option;
    return unknown_option("--" + meant.front());
  }
  std::string text = given + " is ambiguous:";
  for (const std::string& name : meant) text += (name == meant.front() ? " --" : ", --") + name;
  return invalid_argument(text);
}

Result<CommandLine> parse_command_line(const std::vector<std::string>& arguments) {
  Result<Scanned> scanned = scan(arguments);
  if (!scanned) return scanned.error();
  CommandLine line;
  Sources sources{.line = std::move(*scanned)};
  // --help and --version answer, whatever other options are given.
  for (const char* asked : {"help", "version"}) {
    if (!sources.line.texts.contains(asked)) continue;
    const OptionSetting setting = sources.setting_of(*find_option("--" + std::string(asked)));
    if (Result<void> set = apply(setting, sources, line.options); !set) {
      return set.error();
    }
    if (line.options.command != LaunchCommand::kRun) return line;
  }
  const OptionSetting file = sources.setting_of(*find_option("--config"));
  if (Result<void> set = apply(file, sources, line.options); !set) return set.error();
  if (const std::string& path = line.options.config_file; !path.empty()) {
    sources.file_option = place_of(file, sources);
    Result<ConfigFile> read = read_config_file(path);
    if (!read) return std::move(read).error().within(sources.file_option);
    sources.file = std::move(*read);
  }
  if (Result<void> known = check_variables(line.options); !known) return known.error();
  if (Result<void> taken = take_from_cluster(sources, line.options); !taken) return taken.error();
  const bool is_alone = wiring_of(sources).is_alone;
  for (const OptionSpec& spec : option_table()) {
    line.settings.push_back(sources.setting_of(spec));
    Result<void> set = apply(line.settings.back(), sources, line.options);
    if (set) continue;
    // torchrun does not look at it, either.
    if (!is_alone || spec.name != "rdzv-backend") return set.error();
    line.options.remarks.push_back("--rdzv-backend has no effect: --standalone chooses it");
  }
  take_program(sources, line);
  if (line.options.program.empty() && sources.line.rest.empty() &&
      needs_program(line.options.command)) {
    return invalid_argument(
        line.options.module
            ? "the module is missing: ddprun [options] -m package.module [arguments]"
            : "the program is missing: ddprun [options] program [arguments]; see ddprun --help");
  }
  return line;
}

}  // namespace ddprun
