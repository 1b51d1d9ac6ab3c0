// ControlServer: answers what users ask of an agent on its socket (docs/control.md). What concerns the
// whole job it hands on to the rendezvous service, which answers through the agent; status of the
// node, and output, it has itself. Output it also tells the service, for those who ask there.
//
// Owner: Agent, on its one thread, like the functions it is given.
#pragma once

#include <array>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
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
#include "launcher/output/core/recent_output.h"
#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

// What the server asks of its agent.
struct ControlledNode {
  std::function<NodeView()> view;
  // The flight records of its workers, or of the one.
  std::function<std::vector<RankFlight>(std::optional<Rank>)> flights;
  // False: the service cannot be reached now.
  std::function<bool(const UserRequest&)> ask_service;
  // Ends the workers of this node, as SIGTERM to its ddprun does; at_once: without their grace.
  std::function<void(bool at_once)> stop_here;
  // Lost where the service cannot be reached.
  std::function<void(const OutputPage&)> tell_service;
};

class ControlServer {
 public:
  // How long the service may take for an answer. One of an older version never answers.
  static constexpr Duration kServicePatience = std::chrono::seconds(3);

  // Of one service; more it does not answer.
  static constexpr std::size_t kMaxInquiries = 16;

  // listener: of listen_for_control(); invalid: nobody asks but the service. slots: local ranks of
  // this node. REQUIRES: io outlives it.
  ControlServer(boost::asio::io_context& io, UniqueFd listener, ControlledNode node, int slots);

  // Where the output of a local rank is to go, too. Lives as long as the server.
  RecentOutput& output(LocalRank rank, OutputStream stream);

  // The service's, to what ask_service() was given.
  void answered(const Answer& answer);
  // The service's, too: what it wants to know of the output.
  void tell(const TellOutput& what);
  // What the service wanted to know is forgotten with its connection.
  void service_lost();
  // Workers were started: whoever follows their output is told.
  void generation_began();
  // The job's part on this node is over: the last word to all who wait for that.
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
    ControlRequest request;
    std::shared_ptr<boost::asio::steady_timer> patience;
  };

  void take(const ControlSessionPtr& session, std::string_view line);
  void ask_service(const ControlSessionPtr& session, const ControlRequest& request);
  void without_service(const Question& question, const Error& why);
  void show_workers(const ControlSessionPtr& session, const ControlRequest& request);
  void show_flights(const OutputReaderPtr& reader, std::optional<Rank> rank);
  void show(const OutputReaderPtr& reader, std::optional<Rank> rank, int lines, bool follow);
  void begin_inquiry(const TellOutput& what);
  void hand_on(LocalRank rank, OutputStream stream, std::string_view bytes);
  static void send_output(Follower& follower, const OutputSource& source, std::string_view lines);
  void flush_rests();
  void watch_outputs();
  Rank rank_of(LocalRank rank) const;

  boost::asio::io_context& io_;
  ControlledNode node_;
  std::vector<std::array<RecentOutput, 2>> outputs_;  // by local rank and stream
  std::vector<Follower> followers_;
  std::vector<ControlSessionPtr> waiters_;  // for the end, after a stop
  std::map<std::uint64_t, Question> questions_;
  std::uint64_t last_number_ = 0;
  std::map<std::uint64_t, std::shared_ptr<OutputPages>> inquiries_;  // of the service
  int first_rank_ = 0;  // of this node in the present generation
  bool is_over_ = false;
  std::optional<ControlSocket> socket_;
};

}  // namespace ddprun
