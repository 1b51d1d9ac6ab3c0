#include "launcher/doctor/command.h"

#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/exit_codes.h"
#include "base/fail.h"
#include "base/missing_value.h"
#include "base/nearest_word.h"
#include "base/result.h"
#include "base/version.h"
#include "base/worker_env.h"
#include "launcher/doctor/core/doctor.h"
#include "launcher/doctor/facts.h"
#include "launcher/options/command_line.h"
#include "launcher/plan/job_plan.h"
#include "rendezvous/auth/key_file.h"

namespace ddprun {
namespace {

int fail(const Error& error, ExitCode code) { return ddprun::fail("ddprun doctor", error, code); }

constexpr std::string_view kHelp =
    "Usage: ddprun doctor [options] [program [arguments...]]\n\n"
    "Checks this host and the network path to others for what makes jobs hang or run slowly,\n"
    "and says what to do. Starts and changes nothing. Accepts all options of ddprun, and "
    "their\nPET_<NAME> in the environment: put `doctor` into a job's command line, and it checks "
    "what\nthat job needs.\n\n"
    "  ddprun doctor\n"
    "  ddprun doctor --rdzv-endpoint=node0:29400\n"
    "  ddprun doctor --nnodes=2 --rdzv-endpoint=node0:29400 --nproc-per-node=8 train.py\n\n"
    "  --json           one JSON object instead of lines\n"
    "  --libtorch DIR   directory of LibTorch, if it is not next to the Python of PATH, in .venv "
    "or\n                   on LD_LIBRARY_PATH; e.g. --libtorch=/opt/libtorch\n"
    "  -h, --help       this text\n\n"
    "Exit codes: 0 no problem (there may be warnings), 2 usage error,\n"
    "78 a problem was found. See docs/how-to/doctor.md for each finding.\n";

// Returns a message for an unknown option that is close to one of doctor's own, such as "--jsn".
// ddprun's parser does not know these. Empty: no argument is close.
std::string meant_for_doctor(const std::vector<std::string>& arguments) {
  constexpr std::size_t kNear = 2;
  for (const std::string& argument : arguments) {
    if (!argument.starts_with("--") || find_option(argument)) continue;
    for (const char* own : {"--json", "--libtorch", "--help"}) {
      if (edit_distance(argument.substr(0, argument.find('=')), own) > kNear) continue;
      return "unknown option " + argument + ": did you mean " + own + "?";
    }
  }
  return "";
}

struct DoctorLine {
  bool help = false;
  bool json = false;
  DoctorRequest request;
};

// Removes doctor's own options and parses the rest as a command line of ddprun.
Result<DoctorLine> parse(const std::vector<std::string>& arguments) {
  DoctorLine line;
  std::vector<std::string> others;
  std::size_t i = 0;
  for (; i < arguments.size() && arguments[i].starts_with('-') && arguments[i].size() > 1; ++i) {
    const std::string& argument = arguments[i];
    constexpr std::string_view kLibtorch = "--libtorch";
    if (argument == "--") break;
    if (argument == "--json") {
      line.json = true;
    } else if (argument == "--help" || argument == "-h") {
      line.help = true;
    } else if (argument == kLibtorch) {
      if (i + 1 == arguments.size()) return missing_value(kLibtorch, "DIR");
      line.request.libtorch = arguments[++i];
    } else if (argument.starts_with(std::string(kLibtorch) + "=")) {
      line.request.libtorch = argument.substr(kLibtorch.size() + 1);
      if (line.request.libtorch.empty()) return missing_value(kLibtorch, "DIR");
    } else {
      others.push_back(argument);
      const Result<const OptionSpec*> option = option_of(argument);
      const bool has_value = option && *option && !(*option)->is_switch();
      if (has_value && i + 1 < arguments.size()) others.push_back(arguments[++i]);
    }
  }
  if (line.help) return line;
  const std::vector<std::string> options = others;
  others.insert(others.begin(), "--no-detect");  // without an endpoint this host alone is checked
  const bool has_program = i < arguments.size();
  others.insert(others.end(), arguments.begin() + static_cast<std::ptrdiff_t>(i), arguments.end());
  if (!has_program) others.insert(others.end(), {"--", "none"});
  Result<CommandLine> job = parse_command_line(others);
  if (!job) {
    std::string meant = meant_for_doctor(options);
    return meant.empty() ? std::move(job).error() : invalid_argument(std::move(meant));
  }
  if (job->options.command != LaunchCommand::kRun) {
    return invalid_argument("--version, --print-config and --dry-run cannot be used with doctor");
  }
  line.request.options = std::move(job->options);
  if (!has_program) line.request.options.program.clear();
  return line;
}

Result<void> find_etcd(const EtcdPlace& place, DoctorRequest& request) {
  Result<TlsContextPtr> tls = find_etcd_tls(place);
  if (!tls) return tls.error();
  request.etcd = EtcdAsked{.place = place, .tls = std::move(*tls)};
  return {};
}

// Finds the endpoint at which the job's nodes would meet, with the keys and certificates of an
// agent.
Result<void> find_endpoint(DoctorRequest& request) {
  const LaunchOptions& options = request.options;
  const Result<Rendezvous> plan = plan_rendezvous(options);
  if (!plan) return plan.error();
  if (plan->is_local()) return {};
  if (plan->mode == Rendezvous::Mode::kEtcd) {
    request.several_nodes = options.nodes.max > 1;
    return find_etcd(plan->etcd, request);
  }
  EndpointRequest endpoint{
      .option = options.rdzv_endpoint.empty() ? "--master-addr" : "--rdzv-endpoint",
      .address = plan->endpoint,
      .nodes = options.nodes,
      .job = options.rdzv_id};
  const TlsFiles files{
      .cert = options.rdzv_tls_cert, .key = options.rdzv_tls_key, .ca = options.rdzv_tls_ca};
  if (files.is_given()) {
    Result<FoundTls> tls = TlsContext::for_agent(files);
    if (!tls) return tls.error();
    endpoint.tls = std::move(tls->context);
  }
  const Result<FoundKeys> found = find_keys(options.rdzv_key_file);
  if (!found) return found.error();
  endpoint.key = found->keys.key_of(options.rdzv_id).value_or(Secret());
  endpoint.key_for_all = found->keys.for_every_job().value_or(Secret());
  request.several_nodes = options.nodes.max > 1 || !is_loopback_host(endpoint.address.host);
  request.endpoint = std::move(endpoint);
  request.other_services = plan->other_services;
  return {};
}

nlohmann::ordered_json to_json(const std::vector<Finding>& findings, const DoctorFacts& facts) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const Finding& one : findings) {
    nlohmann::ordered_json details = nlohmann::ordered_json::object();
    for (const auto& [name, value] : one.details) {
      std::visit([&, key = name](const auto& plain) { details[key] = plain; }, value);
    }
    list.push_back({{"id", one.id},
                    {"level", enum_name(kLevelNames, one.level)},
                    {"seen", one.seen},
                    {"effect", one.effect},
                    {"advice", one.advice},
                    {"details", std::move(details)}});
  }
  return {{"version", facts.version},
          {"host", facts.host},
          {"ok", worst_of(findings) < Level::kProblem},
          {"findings", std::move(list)}};
}

bool wants_colour() {
  return isatty(STDOUT_FILENO) == 1 && environment_text("NO_COLOR").empty() &&
         environment_variable("TERM").value_or("dumb") != "dumb";
}

}  // namespace

int run_doctor(const std::vector<std::string>& arguments) {
  Result<DoctorLine> line = parse(arguments);
  if (!line) {
    if (std::ranges::count(arguments, "--json") > 0) {
      const nlohmann::json refusal{{"ok", false}, {"error", line.error().message()}};
      std::printf("%s\n",
                  refusal.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).c_str());
    }
    return fail(line.error(), ExitCode::kUsage);
  }
  if (line->help) {
    std::fputs(std::string(kHelp).c_str(), stdout);
    return to_int(ExitCode::kSuccess);
  }
  if (const Result<void> found = find_endpoint(line->request); !found) {
    return fail(found.error(), usage_or(ExitCode::kFiles, found.error()));
  }
  const DoctorFacts facts = collect_facts(line->request);
  const std::vector<Finding> findings = diagnose(facts);
  const std::string text =
      line->json
          ? to_json(findings, facts).dump(2, ' ', false, nlohmann::json::error_handler_t::replace) +
                "\n"
          : report_text(findings, {.coloured = wants_colour()});
  std::fputs(text.c_str(), stdout);
  return to_int(worst_of(findings) < Level::kProblem ? ExitCode::kSuccess : ExitCode::kUnwell);
}

}  // namespace ddprun
