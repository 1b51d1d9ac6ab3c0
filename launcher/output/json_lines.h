// JsonLines: makes the lines of --log-format json, for log collectors: one JSON object for each
// line on the console.
//
//   ddprun's own   {"time": ..., "level": "warning", "message": ..., "job": ..., "host": ...,
//                   "node": 0, "generation": 0}
//   a worker's     {"time": ..., "job": ..., "host": ..., "node": 0, "generation": 0, "rank": 3,
//                   "local_rank": 1, "stream": "stdout", "line": ...}
//
// "node" and "generation" are left out until the first generation is formed. docs/how-to/output.md
// explains every key. Functions may be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/ids.h"
#include "base/log.h"

namespace ddprun {

class JsonLines {
 public:
  JsonLines(std::string job, std::string host) : job_(std::move(job)), host_(std::move(host)) {}

  void set_place(NodeRank node, Generation generation) {
    node_ = node.value;
    generation_ = generation.value;
  }

  // Returns the object for a line of ddprun itself, with its newline.
  std::string own_line(LogLevel level, std::string_view text) const;

  struct Origin {
    Rank rank{0};
    LocalRank local_rank{0};
    bool is_err = false;
    bool cut = false;  // the line continues in the next object: "partial": true
  };
  // Returns the object for a worker's line, with its newline. JSON is UTF-8. If `line` is not
  // valid UTF-8, "line" has U+FFFD for each invalid byte, and "base64" has the original bytes.
  std::string worker_line(const Origin& origin, std::string_view line) const;

 private:
  std::string job_;
  std::string host_;
  std::atomic<int> node_ = -1;
  std::atomic<std::int64_t> generation_ = -1;
};

}  // namespace ddprun
