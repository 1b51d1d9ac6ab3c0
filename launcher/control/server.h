// ControlServer: answers the requests of users on an agent's socket (docs/how-to/control.md).
//
// It answers status of the node, output, flight records and stacks itself. It forwards requests
// that concern the whole job to the rendezvous service, whose answers come back through the agent.
// It also sends output, flight records and stacks to the service, for users who ask there.
//
// Owner: Agent. Runs on the agent's one thread, and so do the functions in ControlledNode.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/control/output_pages.h"
#include "launcher/control/protocol.h"
#include "launcher/control/socket.h"
#include "launcher/flight/core/record.h"
#include "launcher/hang/monitor.h"
#include "launcher/output/core/recent_output.h"
#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

// ControlledNode: the functions of the agent that the server calls.
struct ControlledNode {
  std::function<NodeView()> view;
  // Returns what is known about each rank of this node.
  std::function<std::vector<RankRow>()> ranks;
  // Returns the flight records of this node's workers, or of the given rank only.
  std::function<std::vector<RankFlight>(std::optional<Rank>)> flights;
  // Returns what the pages of this node's living workers say about their calls.
  std::function<std::vector<WorkerSnapshot>()> snapshots;
  // Reads the stacks of these workers: HangMonitor::inspect_stacks().
  std::function<void(std::vector<WorkerSnapshot>, HangMonitor::StacksDone)> inspect_stacks;
  // Sends a request to the service. Returns false if the service cannot be reached now.
  std::function<bool(const UserRequest&)> ask_service;
  // Ends the workers of this node, as SIGTERM to its ddprun does. at_once: without their grace.
  std::function<void(bool at_once)> stop_here;
  // Sends a page to the service. The page is lost if the service cannot be reached.
  std::function<void(const OutputPage&)> send_page;
};

class ControlServer {
 public:
  // How long the service may take to answer. A service of an older version never answers.
  static constexpr Duration kServicePatience = std::chrono::seconds(3);

  // Output requests of the service that may be open at once. A further one gets an empty last
  // page.
  static constexpr std::size_t kMaxInquiries = 16;

  // listener: from listen_for_control(); if it is invalid, only the service can ask. slots:
  // number of local ranks of this node. REQUIRES: io outlives the server.
  ControlServer(boost::asio::io_context& io, UniqueFd listener, ControlledNode node, int slots);

  // Returns the buffer that must also receive the output of a local rank. It lives as long as
  // the server.
  RecentOutput& output(LocalRank rank, OutputStream stream);

  // Takes the service's answer to a request that was sent with ask_service().
  void answered(const Answer& answer);
  // Takes a message of the service about the output that it requests.
  void direct(const OutputDirective& what);
  // Drops all output requests of the service. Called when the connection to it is lost.
  void service_lost();
  // Tells all followers that workers of a new generation were started.
  void generation_began();
  // Sends the last line to all sessions that wait for the end. Called when the job's part on
  // this node is over.
  void ended(int exit_code, const std::string& text);

 private:
  struct Follower {
    OutputReaderPtr reader;
    std::optional<Rank> rank;
    std::map<std::pair<int, OutputStream>, WholeLines> lines;  // by local rank
    std::uint64_t dropped_bytes = 0;
  };
  struct Question {
    ControlSessionPtr session;
    UserRequest request;
    std::shared_ptr<boost::asio::steady_timer> patience;
  };

  void take(const ControlSessionPtr& session, std::string_view line);
  void ask_service(const ControlSessionPtr& session, const UserRequest& request);
  void without_service(const Question& question, const Error& why);
  NodeView view_with_ranks() const;
  void show_workers(const ControlSessionPtr& session, const UserRequest& request);
  void show_flights(const OutputReaderPtr& reader, std::optional<Rank> rank);
  void show_stacks(const OutputReaderPtr& reader, std::optional<Rank> rank);
  void inspect_next();
  void send_stacks(const Result<std::vector<WorkerSnapshot>>& workers);
  void show(const OutputReaderPtr& reader, std::optional<Rank> rank, int lines, bool follow);
  void begin_inquiry(const OutputDirective& what);
  void hand_on(LocalRank rank, OutputStream stream, std::string_view bytes);
  static void send_output(Follower& follower, const OutputSource& source, std::string_view lines);
  void flush_rests();
  void watch_outputs();
  Rank rank_of(LocalRank rank) const;

  boost::asio::io_context& io_;
  ControlledNode node_;
  std::vector<std::array<RecentOutput, 2>> outputs_;  // by local rank and stream
  std::vector<Follower> followers_;
  std::vector<ControlSessionPtr> waiters_;  // sessions that wait for the end after a stop
  // Readers that wait for stacks, with the rank that each asks for. The workers of the first one
  // are inspected now.
  std::deque<std::pair<OutputReaderPtr, std::optional<Rank>>> stack_readers_;
  std::map<std::uint64_t, Question> questions_;
  std::uint64_t last_number_ = 0;
  // Output requests of the service, by number.
  std::map<std::uint64_t, std::shared_ptr<OutputPages>> inquiries_;
  int first_rank_ = 0;  // of this node in the current generation
  bool is_over_ = false;
  std::shared_ptr<ControlSocket> socket_;
};

}  // namespace ddprun
