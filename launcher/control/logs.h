// `ddprun logs`: shows what agents tell of their workers' output as it comes. Blocks; for the main
// thread.
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
  std::optional<Rank> rank = {};  // the only one that is shown
};

// The lines of JSON that agents tell, as they are printed: stdout to stdout, stderr to stderr; with
// `json` all to stdout, an object for each line.
class LogPrinter {
 public:
  explicit LogPrinter(const LogOptions& options) : options_(options) {}

  // What is of another version is passed over. False: nobody reads any more.
  bool take(std::string_view json_line);
  // News of its own: with `json` the object, else the words, to stderr.
  void notice(const nlohmann::json& json, const std::string& words) const;

 private:
  using Source = std::pair<int, bool>;  // rank, is stderr
  bool lines(const Source& source, std::string_view text) const;
  void add(const Source& source, std::string_view line, std::string& all) const;
  void begin(const nlohmann::json& json);

  LogOptions options_;
  bool names_ranks_ = false;  // "[rank 3] " in front of each line
  std::optional<std::int64_t> generation_;
};

// clients: whose request was accepted. Until the agents have nothing more to say; returns the exit
// code.
int show_logs(std::vector<ControlClient> clients, const LogOptions& options);

}  // namespace ddprun
