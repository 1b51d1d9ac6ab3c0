// OutputInquiries: which connections read the output of a job's workers through the service,
// and which requests the job's agents get for that.
//
// Owner: JobTable, on the service's thread. Pure: agents are ids, readers are connections, and
// times are arguments.
//
// An inquiry is one `ddprun logs`, or one `ddprun flight`, which is never followed. Each agent
// concerned is told to begin, and it answers at once. From then on the agent reports when it
// has output, and sends one page of it when it gets its turn. Turns are given only while the
// reader has taken the earlier pages, at most kTurns at a time. So the service keeps at most
// kMaxUnread bytes of pages for a reader, however much the workers write. Output that a slow
// reader misses is dropped and counted by the agents. At the end of their job all agents send
// without a turn. Pages that do not fit then are dropped and counted here.
//
//   state of an agent   what is awaited                              next
//   kAsked              an answer, within kAgentPatience             any
//   kQuiet              a report that it has output                  kReady, kDone
//   kReady              its turn                                     kTurn
//   kTurn               its page, within kAgentPatience              kQuiet, kReady, kDone
//   kLate               nothing; the reader was told of the delay;   any
//                       the agent may still answer
//   kGone               nothing; if the output is followed, the      kAsked
//                       agent is asked again when it is back
//   kDone               nothing
//
// An inquiry ends when nothing is awaited any more. If the output is followed, it ends only
// after the job's end. It ends at most kAgentPatience after the job's end in any case.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rendezvous/protocol/core/control_message.h"

namespace ddprun {

using AgentConnectionId = Id<struct AgentConnectionTag, std::uint64_t>;

struct InquiryOutput {
  struct Send {
    AgentConnectionId connection;
    ServiceMessage message;
    std::uint64_t after = 0;  // the number of the change that it reports; 0: none
    bool last = false;        // close the connection after sending it
  };
  std::vector<ToAgent> directives;  // OutputDirectives
  std::vector<Send> sends;
};

class OutputInquiries {
 public:
  static constexpr Duration kAgentPatience = std::chrono::seconds(3);
  static constexpr std::size_t kOfJob = 8;
  static constexpr std::size_t kOfAll = 64;
  static constexpr std::size_t kTurns = 4;
  static constexpr std::size_t kMaxUnread = 1 << 20;

  // Node: a node that runs workers whose output is asked for.
  struct Node {
    std::string agent_id;
    std::string host;
    bool is_connected = false;
    bool supports_output = false;  // as in its NodeSpec
    bool supports_flight = false;  // as in its NodeSpec
    bool supports_stacks = false;  // as in its NodeSpec
  };

  // Begins an inquiry. REQUIRES: has_room(job), is_answered_by_nodes(request.what), and the reader
  // has no other inquiry.
  InquiryOutput begin(AgentConnectionId reader, const std::string& job, const UserRequest& request,
                      const std::vector<Node>& nodes, TimePoint now);
  bool has_room(const std::string& job) const;

  // Handles a page from an agent. If no inquiry wants it, the answer is kEnd.
  InquiryOutput handle_page(const std::string& agent_id, OutputPage page, TimePoint now);
  // Handles the end of an agent's connection. The agent has forgotten its inquiries then.
  InquiryOutput agent_gone(const std::string& agent_id, TimePoint now);
  // Handles an agent's message that nothing of the job is left on its node.
  InquiryOutput agent_left(const std::string& agent_id, TimePoint now);

  // Reports that all messages to the reader have been sent. This function and those below have
  // no effect on other connections.
  InquiryOutput reader_has_room(AgentConnectionId reader, TimePoint now);
  InquiryOutput reader_gone(AgentConnectionId reader);
  bool is_reader(AgentConnectionId reader) const;
  std::vector<AgentConnectionId> readers() const;

  // Followed: an inquiry that follows a job, and the rank that it wants. Call see() for each
  // whose nodes have changed.
  struct Followed {
    std::uint64_t inquiry = 0;
    std::optional<Rank> rank = {};
  };
  std::vector<Followed> followed(const std::string& job) const;
  // Reports that workers run on these nodes now. Nodes that were not asked yet are asked for
  // all output that they keep. Nodes that are back are asked for new output.
  InquiryOutput see(std::uint64_t inquiry, const std::vector<Node>& nodes, TimePoint now);

  // Handles the end of a job. `after`: the number of the change that records it.
  InquiryOutput job_ended(const std::string& job, const Verdict& verdict, std::uint64_t after,
                          TimePoint now);
  // Handles a job that is not known any more: sends `why` to its readers as their last
  // message.
  InquiryOutput job_gone(const std::string& job, const Silence& why);

  // Handles the passing of time. Call it at deadline(); other times do no harm.
  InquiryOutput tick(TimePoint now);
  std::optional<TimePoint> deadline() const;

 private:
  enum class State { kAsked, kQuiet, kReady, kTurn, kLate, kGone, kDone };
  using enum State;
  struct Source {
    std::string host;
    State state = kDone;
    TimePoint due = {};  // kAsked, kTurn
  };
  struct Inquiry {
    AgentConnectionId reader;
    std::string job;
    UserRequest request;
    std::map<std::string, Source> sources;  // by agent id
    std::deque<std::string> ready;          // those in kReady, in the order of their turns
    std::size_t turns = 0;                  // sources in kTurn
    std::size_t open = 0;                   // sources of which something is awaited
    std::size_t unread = 0;                 // bytes sent since the reader had taken all
    std::uint64_t dropped = 0;              // bytes that the reader was not told of yet
    bool has_answered = false;              // an agent has answered
    std::optional<TimePoint> due = {};      // no source is due before this time
    std::optional<End> end = {};
    std::uint64_t end_after = 0;
    TimePoint end_due = {};
  };
  using Inquiries = std::map<std::uint64_t, Inquiry>;

  static bool is_open(State state);
  static void enter(Inquiry& inquiry, Source& source, State state);
  void await(Inquiry& inquiry, Source& source, State state) const;
  void ask(Inquiries::value_type& inquiry, const Node& node, int lines);
  void say(Inquiry& inquiry, Answer words);
  void say_dropped(Inquiry& inquiry);
  void give_turns(Inquiries::value_type& inquiry);
  void look_for_late(Inquiry& inquiry);
  void direct_end(const Inquiries::value_type& inquiry);
  // Asks the nodes that were not asked yet for that many earlier lines.
  void ask_nodes(Inquiries::iterator inquiry, const std::vector<Node>& nodes, int lines);
  // Continues an inquiry after any event. Returns the next inquiry.
  Inquiries::iterator go_on(Inquiries::iterator inquiry);
  InquiryOutput lose(const std::string& agent_id, State state, TimePoint now);
  static AgentConnectionId reader_of(const Inquiries::value_type& one) { return one.second.reader; }
  Inquiries::iterator find(AgentConnectionId reader);

  TimePoint now_;      // of the event that is being handled
  InquiryOutput out_;  // what it has led to so far; empty between events
  Inquiries inquiries_;
  std::uint64_t last_number_ = 0;
};

}  // namespace ddprun
