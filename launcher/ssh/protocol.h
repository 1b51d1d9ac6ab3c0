// What the head and a far end say to each other over ssh. Any thread.
//
//   far end  stdout: the line "ddprun-ssh-node {greeting}"
//   head     stdin:  4 bytes, big-endian: the size of the plan; the plan, in CBOR; the contents of
//                    the files that are copied; then one byte for each signal
//   far end  stdout: "MARK {ready}" or "MARK {refused}"; what the workers print; "MARK {ended}"
//
// A signal of 0 only says that the head is there. The head sends one every kPingInterval. A far end
// that hears nothing for kHeadPatience takes the head for lost, unless the last signal was SIGTSTP.
//
// The plan has MARK, a random word, so that no worker prints such a line. The end of the head's
// stream means that the head is gone: the far end then ends everything on its host.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/host_port.h"
#include "base/result.h"
#include "launcher/ssh/core/head.h"

namespace ddprun {

// The word before the greeting. What a login shell prints before that line is ignored.
inline constexpr std::string_view kGreetingMark = "ddprun-ssh-node";

inline constexpr Duration kPingInterval = std::chrono::seconds(10);
inline constexpr Duration kHeadPatience = std::chrono::seconds(60);

struct CopiedFile {
  std::string path;  // as given: relative paths are below the directory
  mode_t mode = 0644;
  std::uint64_t size = 0;
};

struct NodePlan {
  std::string mark;
  std::string key;  // of the rendezvous
  int nodes = 1;
  int node_rank = 0;
  std::string endpoint;  // of the rendezvous; empty: this node serves it
  std::string peer;      // see SendPlan
  std::string directory;
  std::vector<std::pair<std::string, std::string>> environment;
  std::vector<std::string> arguments;  // of ddprun, without those above
  // Options that decide where node 0 serves the rendezvous.
  std::string local_addr;
  PortRange ports;
  std::vector<CopiedFile> files;
};

// Returns the plan with its size before it.
std::string encode_plan(const NodePlan& plan);
// Decodes a plan without its size. kProtocol: it is none.
Result<NodePlan> decode_plan(std::string_view bytes);

inline constexpr std::size_t kPlanSizeBytes = 4;
// Returns the size of the plan that follows. kProtocol: it is too large for a plan.
Result<std::size_t> decode_plan_size(std::string_view bytes);

// Returns the line in which a far end tells an event. REQUIRES: it is Greeted, Ready, PlanRefused
// or AgentEnded.
std::string control_line(std::string_view mark, const HeadEvent& event);
// Parses the text after the mark. nullopt: it is not a valid event.
std::optional<HeadEvent> parse_control(int host, std::string_view text);

}  // namespace ddprun
