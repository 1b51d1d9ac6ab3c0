// NodeCheck: checks this node before it runs a generation (--node-check).
//
// Owner: Agent, on its one thread. The measurements run on another thread. No function waits for
// it.
#pragma once

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "base/ids.h"
#include "launcher/node_check/core/judgement.h"
#include "launcher/node_check/gpus.h"
#include "launcher/node_check/neighbours.h"

namespace ddprun {

struct NodeCheckPlan {
  Generation generation{0};
  std::string directory;  // where a file is written; empty: none is
  NodeLimits limits;
  int workers = 1;                          // of this node. As many GPUs are checked, if there are
  std::optional<NeighbourPlan> neighbours;  // nullopt: there are none, or no store to meet at
  // The program that checks GPUs. The kernel finds this one also after its file was removed.
  std::string ddprun = "/proc/self/exe";
  GpuPatience gpu_patience = {};
};

class NodeCheck {
 public:
  // What the checks before that of the GPUs may take. A check that takes longer than this is a
  // fault. If GPUs are checked, gpu_patience is added. It is never less than kLeastPatience.
  static constexpr Duration kPatienceBeforeGpus = std::chrono::seconds(15);
  static constexpr Duration kLeastPatience = std::chrono::seconds(45);
  // fault: what is wrong, in one line; empty: the node is fit.
  using Done = std::function<void(Generation generation, const std::string& fault)>;

  // done: called from the io_context, once for each begin() without a later end(). REQUIRES: io
  // outlives this object.
  NodeCheck(boost::asio::io_context& io, Done done);
  ~NodeCheck() { end(); }
  NodeCheck(const NodeCheck&) = delete;
  NodeCheck& operator=(const NodeCheck&) = delete;

  // Begins a check. An earlier one is dropped.
  void begin(NodeCheckPlan plan);
  // Drops the check that runs. Its process for GPUs is killed. Other measurements end by
  // themselves, and their result is lost.
  void end();

 private:
  struct Shared;  // state that the thread shares with its owner

  void finish(Generation generation, const std::string& fault);

  boost::asio::io_context& io_;
  boost::asio::steady_timer late_;
  Done done_;
  std::shared_ptr<Shared> shared_;  // null: no check, or it was dropped
};

}  // namespace ddprun
