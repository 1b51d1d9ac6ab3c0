// StackShow: implements `ddprun stacks`. Collects the stacks that agents send, and prints ranks at
// the same place together. Used on the main thread.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace ddprun {

class StackShow {
 public:
  // Take what an agent sends: one line, or lines with their line ends. Lines of an unknown kind are
  // ignored.
  void take(std::string_view json_line);
  void take_page(std::string_view lines);

  bool has_any() const { return !workers_.empty(); }
  // Returns what is missing, in sentences for people.
  const std::vector<std::string>& missing() const { return missing_; }
  // Returns whether a stack shows Python's interpreter instead of the functions of the program.
  bool has_interpreter() const;
  // Returns an object with the workers in the order of their ranks.
  nlohmann::json as_json() const;
  // Returns the stacks, the outermost frame first. The largest group of ranks comes first, so that
  // the few ranks that are elsewhere come last.
  std::string as_text() const;

 private:
  struct Worker {
    int rank = 0;
    std::string doing;  // in a call: the call, otherwise what the kernel says
    bool is_stopped = false;
    std::vector<std::string> frames;
    std::string line;  // as the agent sent it
  };
  std::vector<Worker> by_rank() const;

  std::vector<Worker> workers_;
  std::vector<std::string> missing_;
};

}  // namespace ddprun
