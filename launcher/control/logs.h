// Implements `ddprun logs`: prints the output of workers while their agents send it. Blocks the
// main thread.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/ids.h"
#include "launcher/control/client.h"

namespace ddprun {

struct LogOptions {
  bool json = false;
  std::optional<Rank> rank = {};  // shows only this rank; nullopt: all ranks
};

// LogPrinter: prints the JSON lines that agents send. Output of workers goes to stdout or
// stderr, as the worker wrote it. With `json`, everything goes to stdout, as one object per
// line.
class LogPrinter {
 public:
  explicit LogPrinter(const LogOptions& options) : options_(options) {}

  // Prints one line of an agent. Ignores lines of a kind that it does not know, such as those
  // of another version. Returns false if stdout or stderr can no longer be written.
  bool take(std::string_view json_line);
  // Prints a message that is not output of a worker: with `json` the object to stdout, else
  // `words` to stderr.
  void notice(const nlohmann::json& json, const std::string& words) const;

 private:
  using Source = std::pair<int, bool>;  // rank, and whether it is stderr
  bool lines(const Source& source, std::string_view text) const;
  void add(const Source& source, std::string_view line, std::string& all) const;
  void begin(const nlohmann::json& json);

  LogOptions options_;
  bool names_ranks_ = false;  // puts "[rank 3] " before each line
  std::optional<std::int64_t> generation_;
};

// Prints what the agents send until all connections have ended or the output cannot be written.
// clients: connections whose request the agent has accepted. Returns the exit code.
int show_logs(std::vector<ControlClient> clients, const LogOptions& options);

}  // namespace ddprun
