#include "worker_lib/store/core/start_plan.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "base/concat.h"
#include "base/parse_number.h"

namespace ddprun {
namespace {

struct Place {
  std::optional<int> rank;
  std::optional<int> world_size;
};

// The parts of an init_method.
struct Method {
  enum class Scheme { kEnv, kTcp, kFile };
  Scheme scheme = Scheme::kEnv;
  HostPort address;
  std::string file;
  Place place;
};

Result<void> read_query(std::string_view query, Place& place) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(query.size(), pair.size() + 1));
    if (pair.empty()) continue;
    const std::size_t equals = pair.find('=');
    const std::string_view name = pair.substr(0, equals);
    std::optional<int>* const number = name == "rank"         ? &place.rank
                                       : name == "world_size" ? &place.world_size
                                                              : nullptr;
    if (!number || equals == pair.npos) {
      return invalid_argument(concat("'", pair, "': expected ?rank=R&world_size=N"));
    }
    const std::string_view value = pair.substr(equals + 1);
    *number = parse_number<int>(value);
    if (!*number) return invalid_value(value, "expected an integer").within(name);
  }
  return {};
}

Result<void> read_place(std::string_view place, Method& method) {
  if (method.scheme == Method::Scheme::kEnv) {
    if (place.empty()) return {};
    return invalid_argument("nothing but ?rank=R&world_size=N may follow env://");
  }
  if (method.scheme == Method::Scheme::kFile) {
    if (!place.starts_with('/') || place.ends_with('/')) {
      return invalid_argument("expected the absolute path of a file, file:///PATH");
    }
    method.file = place;
    return {};
  }
  if (place.ends_with('/')) place.remove_suffix(1);
  const Result<HostPort> address = parse_host_port(place);
  if (!address) return address.error();
  if (address->host.empty())
    return invalid_argument("the host is missing: expected tcp://HOST:PORT");
  if (address->port == 0) {
    return invalid_argument("port 0 cannot be used: every rank must know the port");
  }
  method.address = *address;
  return {};
}

Result<Method> read_method(std::string_view text) {
  Method method;
  const std::pair<std::string_view, Method::Scheme> schemes[] = {
      {"env://", Method::Scheme::kEnv},
      {"tcp://", Method::Scheme::kTcp},
      {"file://", Method::Scheme::kFile}};
  for (const auto& [prefix, scheme] : schemes) {
    if (!text.starts_with(prefix)) continue;
    method.scheme = scheme;
    text.remove_prefix(prefix.size());
    const std::string_view place = text.substr(0, text.find('?'));
    Result<void> done = read_place(place, method);
    if (done && place.size() < text.size()) {
      done = read_query(text.substr(place.size() + 1), method.place);
    }
    if (!done) return done.error();
    return method;
  }
  return invalid_argument(
      "expected env://, tcp://HOST:PORT or file:///PATH, each optionally with "
      "?rank=R&world_size=N");
}

// Returns the number from the options or the query; nullopt: neither has it. It is an error if
// both have it.
Result<std::optional<int>> one_of(const char* name, std::optional<int> option,
                                  std::optional<int> query) {
  if (option && query) {
    return invalid_argument(
        concat(name, " is in InitOptions and in the init_method: give it once"));
  }
  return option ? option : query;
}

Result<void> check(const Place& place) {
  if (place.world_size && *place.world_size < 1) {
    return invalid_argument(concat("world_size ", *place.world_size, " is less than 1"));
  }
  if (place.rank && *place.rank < 0) {
    return invalid_argument(concat("rank ", *place.rank, " is less than 0"));
  }
  if (place.rank && place.world_size && *place.rank >= *place.world_size) {
    return invalid_argument(
        concat("rank ", *place.rank, " is not in the range 0 to ", *place.world_size - 1));
  }
  return {};
}

bool is_launched(const EnvLookup& lookup) { return lookup("RANK") && lookup("WORLD_SIZE"); }

// Reads the variables; the options' rank and size override them. If these are not the
// launcher's, its other variables still describe this process: its LOCAL_RANK, and how it
// reports.
Result<WorkerEnv> read_env(const Place& place, bool is_env_method, const EnvLookup& lookup) {
  if (is_launched(lookup) && !is_env_method) {
    Result<std::optional<WorkerEnv>> env = read_worker_env(lookup);
    if (!env) return env.error();
    (*env)->rank = Rank(*place.rank);
    (*env)->world_size = *place.world_size;
    return std::move(**env);
  }
  const EnvLookup with_place = [&](std::string_view name) -> std::optional<std::string> {
    if (name == "RANK" && place.rank) return std::to_string(*place.rank);
    if (name == "WORLD_SIZE" && place.world_size) return std::to_string(*place.world_size);
    if (name.starts_with("MASTER_") && !is_env_method) return std::nullopt;
    return lookup(name);
  };
  Result<std::optional<WorkerEnv>> env = read_worker_env(with_place);
  if (!env) return env.error();
  return std::move(*env).value_or(WorkerEnv());
}

Result<StartPlan> plan_for(const Method& method, const Place& place, bool has_store,
                           const EnvLookup& lookup) {
  const bool is_env_method = !has_store && method.scheme == Method::Scheme::kEnv;
  Result<WorkerEnv> env = read_env(place, is_env_method, lookup);
  if (!env) return env.error();
  StartPlan plan{.env = std::move(*env)};
  const WorkerEnv& read = plan.env;
  if (read.world_size == 1) return plan;
  if (has_store) {
    plan.meet_at = MeetAt::kGivenStore;
  } else if (method.scheme == Method::Scheme::kFile) {
    plan.meet_at = MeetAt::kFile;
    plan.file = method.file;
  } else {
    plan.address = is_env_method ? store_address(read) : method.address;
    if (plan.address.host.empty()) {
      return invalid_argument("empty value").within("read environment variable MASTER_ADDR");
    }
    // As in PyTorch, no rank hosts a store if the environment says that an agent does. The
    // exception is under a launcher whose store is another one than the one requested: rank 0
    // must host that one.
    const bool is_launchers = plan.address == store_address(read) || !is_launched(lookup);
    const bool is_there = read.agent_store && is_launchers;
    plan.meet_at = is_there ? MeetAt::kAgentStore : MeetAt::kAddress;
  }
  return plan;
}

}  // namespace

Result<StartPlan> plan_start(const StartRequest& request, const EnvLookup& lookup) {
  if (request.has_store && request.init_method) {
    return invalid_argument("give an init_method or a store, not both");
  }
  const std::string text = request.init_method.value_or("env://");
  const std::string what = request.has_store ? "the store" : "init_method '" + text + "'";
  const Result<Method> method = request.has_store ? Method() : read_method(text);
  if (!method) return method.error().within(what);
  const auto rank = one_of("rank", request.rank, method->place.rank);
  const auto world_size = one_of("world_size", request.world_size, method->place.world_size);
  if (!rank) return rank.error();
  if (!world_size) return world_size.error();
  const Place place{*rank, *world_size};
  if (const Result<void> sane = check(place); !sane) return sane.error();

  const bool needs_both = request.has_store || method->scheme != Method::Scheme::kEnv;
  const bool has_rank = place.rank || (!needs_both && lookup("RANK"));
  const bool has_size = place.world_size || (!needs_both && lookup("WORLD_SIZE"));
  if (needs_both && !(has_rank && has_size)) {
    return invalid_argument(what + " needs rank and world_size in InitOptions" +
                            (request.has_store ? "" : ", or ?rank=R&world_size=N after it"));
  }
  if (has_rank != has_size && (place.rank || place.world_size)) {
    return invalid_argument(has_rank ? "rank is given, but neither world_size nor WORLD_SIZE is"
                                     : "world_size is given, but neither rank nor RANK is");
  }
  Result<StartPlan> plan = plan_for(*method, place, request.has_store, lookup);
  if (plan) {
    plan->place = needs_both ? what : "MASTER_ADDR:MASTER_PORT " + to_text(plan->address);
  }
  return plan;
}

}  // namespace ddprun
