#include "base/worker_env.h"

#include <cstdlib>
#include <limits>

#include "base/parse_number.h"
#include "base/signal_names.h"

namespace ddprun {
namespace {

constexpr int kDefaultLeaseMs = static_cast<int>(to_ms(kDefaultLease));

std::string reading(std::string_view name) {
  return "read environment variable " + std::string(name);
}

// IntReader: reads integer variables one after the other and keeps the first error, so that the
// code below is a plain list of variables. After an error every read returns its minimum.
class IntReader {
 public:
  explicit IntReader(const EnvLookup& lookup) : lookup_(lookup) {}

  // Returns the variable, which must be in min..max. If it is not set, returns `fallback`, if
  // there is one.
  int read(std::string_view name, int min, int max, std::optional<int> fallback = {}) {
    if (error_) return min;
    const std::optional<std::string> text = lookup_(name);
    if (!text) {
      if (fallback) return *fallback;
      return fail(name, "not set, although other variables of the launcher are", min);
    }
    const std::optional<int> value = parse_number<int>(*text);
    if (!value || *value < min || *value > max) {
      const std::string range = "an integer from " + std::to_string(min) + " to ";
      const std::string expected = (min < max ? range : "") + std::to_string(max);
      return fail(name, "invalid value '" + *text + "' (expected " + expected + ")", min);
    }
    return *value;
  }

  const std::optional<Error>& error() const { return error_; }

 private:
  int fail(std::string_view name, std::string cause, int value) {
    error_ = invalid_argument(std::move(cause)).within(reading(name));
    return value;
  }

  const EnvLookup& lookup_;
  std::optional<Error> error_;
};

// Returns "SIGTERM,SIGINT,...", which torchrun's workers split at the commas.
std::string passed_signals_text() {
  std::string text;
  for (const int signal : kPassedSignals) text += (text.empty() ? "" : ",") + signal_name(signal);
  return text;
}

// A variable of the launcher. value: nullopt: it is not set for this worker.
struct Variable {
  std::string_view name;
  std::optional<std::string> value;
};

std::vector<Variable> all_variables(const WorkerEnv& env) {
  const auto only_if = [](bool is_set, std::string value) {
    return is_set ? std::optional(std::move(value)) : std::nullopt;
  };
  const auto unless_empty = [&](const std::string& value) {
    return only_if(!value.empty(), value);
  };
  return {
      {"RANK", to_text(env.rank)},
      {"WORLD_SIZE", std::to_string(env.world_size)},
      {"LOCAL_RANK", to_text(env.local_rank)},
      {"LOCAL_WORLD_SIZE", std::to_string(env.local_world_size)},
      {"GROUP_RANK", to_text(env.node_rank)},
      {"GROUP_WORLD_SIZE", std::to_string(env.node_count)},
      {"ROLE_NAME", env.role},
      {"ROLE_RANK", to_text(env.rank)},  // all nodes of a job have one role
      {"ROLE_WORLD_SIZE", std::to_string(env.world_size)},
      {"MASTER_ADDR", env.master_addr},
      {"MASTER_PORT", std::to_string(env.master_port)},
      {"TORCHELASTIC_RESTART_COUNT", std::to_string(env.restart_count)},
      {"TORCHELASTIC_MAX_RESTARTS", std::to_string(env.max_restarts)},
      {"TORCHELASTIC_RUN_ID", env.run_id},
      {"TORCHELASTIC_USE_AGENT_STORE", env.agent_store ? "True" : "False"},
      {"TORCHELASTIC_ERROR_FILE", env.error_file},
      {"TORCHELASTIC_SIGNALS_TO_HANDLE", passed_signals_text()},
      {"TORCH_NCCL_ASYNC_ERROR_HANDLING", unless_empty(env.nccl_async_error_handling)},
      {"OMP_NUM_THREADS", unless_empty(env.omp_num_threads)},
      {"CUDA_VISIBLE_DEVICES", unless_empty(env.cuda_visible_devices)},
      {"DDPRUN_GENERATION", to_text(env.generation)},
      {"DDPRUN_SUBMISSION", unless_empty(env.submission)},
      {"DDPRUN_LEASE_MS", std::to_string(to_ms(env.lease))},
      {"DDPRUN_PORT_RANGE", only_if(env.ports != PortRange{}, to_text(env.ports))},
      {"DDPRUN_CHECKPOINT_SIGNAL",
       only_if(env.checkpoint_signal != 0, std::to_string(env.checkpoint_signal))},
      {"DDPRUN_WORKER_PAGE",
       only_if(!env.page_file.empty(), std::to_string(env.page_offset) + "@" + env.page_file)},
  };
}

}  // namespace

std::vector<std::string_view> worker_variables() {
  std::vector<std::string_view> names;
  for (const Variable& one : all_variables({})) names.push_back(one.name);
  return names;
}

std::vector<std::pair<std::string, std::string>> variables_of(const WorkerEnv& env) {
  std::vector<std::pair<std::string, std::string>> variables;
  for (Variable& one : all_variables(env)) {
    if (one.value) variables.emplace_back(one.name, std::move(*one.value));
  }
  return variables;
}

HostPort store_address(const WorkerEnv& env) {
  return {.host = env.master_addr, .port = env.master_port};
}

std::optional<std::string> environment_variable(std::string_view name) {
  const char* value = std::getenv(std::string(name).c_str());
  return value ? std::optional<std::string>(value) : std::nullopt;
}

Result<std::optional<WorkerEnv>> read_worker_env(const EnvLookup& lookup) {
  if (!lookup("RANK") && !lookup("WORLD_SIZE")) return std::optional<WorkerEnv>();

  constexpr int kMaxWorld = 1 << 24;
  IntReader ints(lookup);
  WorkerEnv env;
  env.world_size = ints.read("WORLD_SIZE", 1, kMaxWorld);
  env.rank = Rank(ints.read("RANK", 0, env.world_size - 1));
  env.local_world_size = ints.read("LOCAL_WORLD_SIZE", 1, env.world_size, env.world_size);
  env.local_rank = LocalRank(
      ints.read("LOCAL_RANK", 0, env.local_world_size - 1, env.rank.value % env.local_world_size));
  env.node_count = ints.read("GROUP_WORLD_SIZE", 1, env.world_size,
                             (env.world_size + env.local_world_size - 1) / env.local_world_size);
  env.node_rank = NodeRank(
      ints.read("GROUP_RANK", 0, env.node_count - 1, env.rank.value / env.local_world_size));
  env.master_port =
      static_cast<std::uint16_t>(ints.read("MASTER_PORT", 1, 65535, kDefaultMasterPort));
  env.restart_count = ints.read("TORCHELASTIC_RESTART_COUNT", 0, kMaxWorld, 0);
  env.max_restarts = ints.read("TORCHELASTIC_MAX_RESTARTS", 0, kMaxWorld, 0);
  // torchrun itself sets no generation: its restart count is the nearest value.
  env.generation = Generation(ints.read("DDPRUN_GENERATION", 0, kMaxWorld, env.restart_count));
  env.lease = std::chrono::milliseconds(
      ints.read("DDPRUN_LEASE_MS", 1, std::numeric_limits<int>::max(), kDefaultLeaseMs));
  env.checkpoint_signal = ints.read("DDPRUN_CHECKPOINT_SIGNAL", 1, 31, 0);
  if (ints.error()) return *ints.error();

  if (const std::optional<std::string> text = lookup("DDPRUN_PORT_RANGE")) {
    const Result<PortRange> ports = parse_port_range(*text);
    if (!ports) return Error(ports.error()).within(reading("DDPRUN_PORT_RANGE"));
    env.ports = *ports;
  }
  if (const std::optional<std::string> text = lookup("DDPRUN_WORKER_PAGE")) {
    const std::size_t at = text->find('@');
    const auto offset = parse_number<std::uint32_t>(std::string_view(*text).substr(0, at));
    if (!offset || at == std::string::npos || at + 1 == text->size()) {
      return invalid_value(*text, "expected OFFSET@FILE").within(reading("DDPRUN_WORKER_PAGE"));
    }
    env.page_file = text->substr(at + 1);
    env.page_offset = *offset;
  }
  env.master_addr = lookup("MASTER_ADDR").value_or("127.0.0.1");
  env.agent_store = lookup("TORCHELASTIC_USE_AGENT_STORE") == "True";
  env.run_id = lookup("TORCHELASTIC_RUN_ID").value_or(env.run_id);
  env.submission = lookup("DDPRUN_SUBMISSION").value_or("");
  env.role = lookup("ROLE_NAME").value_or(env.role);
  env.error_file = lookup("TORCHELASTIC_ERROR_FILE").value_or("");
  return std::optional<WorkerEnv>(std::move(env));
}

}  // namespace ddprun
