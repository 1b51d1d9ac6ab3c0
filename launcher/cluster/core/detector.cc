#include "launcher/cluster/core/detector.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/concat.h"
#include "base/fnv1a.h"
#include "base/parse_number.h"
#include "base/split.h"

namespace ddprun {

Result<std::string> needed(const EnvLookup& lookup, std::string_view name, std::string_view sign) {
  const std::optional<std::string> text = lookup(name);
  if (text && !text->empty()) return *text;
  return invalid_argument(concat("not set, although ", sign,
                                 " is set (--no-detect: take nothing from the scheduler)"))
      .within(name);
}

Result<std::uint64_t> needed_number(const EnvLookup& lookup, std::string_view name,
                                    std::string_view sign) {
  const Result<std::string> text = needed(lookup, name, sign);
  if (!text) return text.error();
  const std::optional<std::uint64_t> number = parse_number<std::uint64_t>(*text);
  if (!number) return invalid_value(*text, "expected a number").within(name);
  return *number;
}

Result<int> needed_count(const EnvLookup& lookup, std::string_view name, std::string_view sign) {
  const Result<std::uint64_t> number = needed_number(lookup, name, sign);
  if (!number) return number.error();
  if (*number < 1 || *number > std::numeric_limits<int>::max())
    return invalid_value(std::to_string(*number), "expected a number from 1").within(name);
  return static_cast<int>(*number);
}

Result<int> needed_index(const EnvLookup& lookup, std::string_view name, std::string_view sign,
                         int count, std::string_view counted_by) {
  const Result<std::uint64_t> number = needed_number(lookup, name, sign);
  if (!number) return number.error();
  if (*number >= static_cast<std::uint64_t>(count)) {
    return invalid_value(std::to_string(*number),
                         concat("expected less than ", count, ", as ", counted_by, " says"))
        .within(name);
  }
  return static_cast<int>(*number);
}

bool is_worker(const EnvLookup& lookup) { return lookup("TORCHELASTIC_RUN_ID").has_value(); }

std::uint16_t port_of(std::string_view job_id) { return numbered_port(fnv1a(job_id)); }

void meet_near(ClusterPlan& plan, std::string host, std::uint16_t port) {
  constexpr int kNextPorts = 7;
  plan.endpoint = {std::move(host), port};
  for (int i = 0; i < kNextPorts; ++i) plan.next_ports.push_back(++port);
}

std::optional<int> listed_gpus(const EnvLookup& lookup, std::string_view name) {
  const std::string list = lookup(name).value_or("");
  constexpr std::string_view kNoList[] = {"", "all", "none", "void", "-1"};
  if (std::ranges::find(kNoList, list) != std::end(kNoList)) return std::nullopt;
  return static_cast<int>(split(list, ',').size());
}

Result<std::optional<ClusterPlan>> plan_from(const NodeVariables& variables,
                                             const EnvLookup& lookup) {
  const char* const sign = variables.sign;
  if (lookup(sign).value_or("").empty() || is_worker(lookup)) return std::nullopt;
  const Result<int> nodes = needed_count(lookup, variables.nodes, sign);
  if (!nodes) return nodes.error();
  const Result<int> node_rank =
      needed_index(lookup, variables.node_rank, sign, *nodes, variables.nodes);
  if (!node_rank) return node_rank.error();
  const Result<std::string> host = needed(lookup, variables.host, sign);
  if (!host) return host.error();
  std::uint64_t port = kDefaultMasterPort;
  if (variables.port) {
    const Result<int> given = needed_count(lookup, variables.port, sign);
    if (!given) return given.error();
    constexpr int kMostPort = std::numeric_limits<std::uint16_t>::max();
    if (*given > kMostPort)
      return invalid_value(std::to_string(*given), "expected a port").within(variables.port);
    port = static_cast<std::uint64_t>(*given);
  }
  const Result<std::string> job_id = needed(lookup, variables.job_id, sign);
  if (!job_id) return job_id.error();
  ClusterPlan plan;
  plan.name = concat(variables.name, " ", *job_id);
  plan.nodes = *nodes;
  plan.node_rank = *node_rank;
  plan.endpoint = {*host, static_cast<std::uint16_t>(port)};
  plan.job_id = *job_id;
  return plan;
}

}  // namespace ddprun
