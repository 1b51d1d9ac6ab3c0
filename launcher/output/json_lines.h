// --log-format json: one JSON object for each line on the console, for collectors of logs.
//
//   ddprun's own   {"time": ..., "level": "warning", "message": ..., "job": ..., "host": ...,
//                   "node": 0, "generation": 0}
//   a worker's     {"time": ..., "job": ..., "host": ..., "node": 0, "generation": 0, "rank": 3,
//                   "local_rank": 1, "stream": "stdout", "line": ...}
//
// node and generation are left out before there are any. docs/output.md explains every key. Any thread.
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

  // Each with its newline.
  std::string own_line(LogLevel level, std::string_view text) const;

  struct Origin {
    Rank rank{0};
    LocalRank local_rank{0};
    bool is_err = false;
    bool cut = false;  // the line goes on in the next one: "partial": true
  };
  // JSON is UTF-8: of another line, "line" has U+FFFD for each byte that is none, and "base64" the bytes.
  std::string worker_line(const Origin& origin, std::string_view line) const;

 private:
  std::string job_;
  std::string host_;
  std::atomic<int> node_ = -1;
  std::atomic<std::int64_t> generation_ = -1;
};

}  // namespace ddprun
