// OutputInquiries: who reads what a job's workers write through the service, and what the job's
// agents have to be asked for it.
//
// Owner: JobTable, on the service's thread. Pure: agents are ids, readers are connections, time
// comes in with each event.
//
// An inquiry is one `ddprun logs`, or one `ddprun flight`, which is not followed. Each agent
// concerned is told to begin and answers at once; from then on it says when it has something, and
// tells it, one page, when it is its turn. Turns are given only while the reader has taken what
// came before, kTurns of them at a time: so the service keeps kMaxUnread bytes for a reader at most,
// whoever writes how much, and what a slow reader misses is missing at the agents, who count it. An
// agent that tells without a turn, as all do at the end of their job, loses what there is no room
// for, and that is counted here.
//
//   state of an agent   what is awaited                              next
//   kAsked              an answer, within kAgentPatience             any
//   kQuiet              that it has something to tell                kReady, kDone
//   kReady              its turn                                     kTurn
//   kTurn               its page, within kAgentPatience              kQuiet, kReady, kDone
//   kLate               nothing: the reader was told; it may answer  any
//   kGone               likewise; while the output is followed, it is asked again when it is back
//   kDone               nothing
//
// An inquiry ends when nothing is awaited any more, while the output is followed only after the
// job's end, and kAgentPatience after that in any case.
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
  struct Addressed {
    std::string agent_id;
    TellOutput what;
  };
  struct Said {
    AgentConnectionId reader;
    ServiceMessage message;
    std::uint64_t after = 0;  // as of a ServiceOutput::Send
    bool last = false;        // the inquiry is over
  };
  std::vector<Addressed> tells;
  std::vector<Said> says;
};

class OutputInquiries {
 public:
  static constexpr Duration kAgentPatience = std::chrono::seconds(3);
  static constexpr std::size_t kOfJob = 8;
  static constexpr std::size_t kOfAll = 64;
  static constexpr std::size_t kTurns = 4;
  static constexpr std::size_t kMaxUnread = 1 << 20;

  // One that runs workers whose output is asked for.
  struct Node {
    std::string agent_id;
    std::string host;
    bool is_connected = false;
    bool tells_output = false;  // as in its NodeSpec
    bool tells_flight = false;  // likewise
  };

  // REQUIRES: has_room(job), request.what is kLogs or kFlight, and the reader has no other inquiry.
  InquiryOutput begin(AgentConnectionId reader, const std::string& job, const UserRequest& request,
                      const std::vector<Node>& nodes, TimePoint now);
  bool has_room(const std::string& job) const;

  // What an agent tells. One that nobody wants is answered by kEnd.
  InquiryOutput told(const std::string& agent_id, OutputPage page, TimePoint now);
  // The agent's connection is gone, and with it what it knew of inquiries.
  InquiryOutput agent_gone(const std::string& agent_id, TimePoint now);
  // The agent has said that nothing of the job is left on its node.
  InquiryOutput agent_left(const std::string& agent_id, TimePoint now);

  // Everything that was said to the reader has left. No effect on other connections, here and
  // below.
  InquiryOutput reader_has_room(AgentConnectionId reader, TimePoint now);
  InquiryOutput reader_gone(AgentConnectionId reader);
  bool is_reader(AgentConnectionId reader) const { return find(reader) != inquiries_.end(); }
  std::vector<AgentConnectionId> readers() const;

  // Of those who follow a job: which ranks they want; for each that has changed nodes, see().
  struct Followed {
    std::uint64_t inquiry = 0;
    std::optional<Rank> rank = {};
  };
  std::vector<Followed> followed(const std::string& job) const;
  // Workers run on these nodes now: those that were not asked yet are asked for all they keep,
  // those that are back for what comes.
  InquiryOutput see(std::uint64_t inquiry, const std::vector<Node>& nodes, TimePoint now);

  // The job is over; `after`: the change that says so.
  InquiryOutput job_ended(const std::string& job, const Verdict& verdict, std::uint64_t after,
                          TimePoint now);
  // The job is not known any more: its readers' last word.
  InquiryOutput job_gone(const std::string& job, const Silence& why);

  // Time has passed: to be called at deadline(), harmless at other times.
  InquiryOutput tick(TimePoint now);
  std::optional<TimePoint> deadline() const;

 private:
  enum class State { kAsked, kQuiet, kReady, kTurn, kLate, kGone, kDone };
  struct Source {
    std::string host;
    State state = State::kDone;
    TimePoint due = {};  // kAsked, kTurn
  };
  struct Inquiry {
    AgentConnectionId reader;
    std::string job;
    UserRequest request;
    std::map<std::string, Source> sources;  // by agent id
    std::deque<std::string> ready;          // those in kReady, whose turn is next first
    std::size_t turns = 0;                  // sources in kTurn
    std::size_t open = 0;                   // sources of which something is awaited
    std::size_t unread = 0;                 // bytes said since the reader had taken all
    std::uint64_t dropped = 0;              // bytes, and the reader was not told yet
    bool has_told = false;                  // an agent has answered
    std::optional<TimePoint> due = {};      // no source is due before
    std::optional<End> end = {};
    std::uint64_t end_after = 0;
    TimePoint end_due = {};
  };
  using Inquiries = std::map<std::uint64_t, Inquiry>;

  static bool is_open(State state);
  static void enter(Inquiry& inquiry, Source& source, State state);
  static void await(Inquiry& inquiry, Source& source, State state, TimePoint now);
  static void ask(Inquiries::value_type& inquiry, const Node& node, int lines, TimePoint now,
                  InquiryOutput& out);
  static void say(Inquiry& inquiry, Answer words, InquiryOutput& out);
  static void say_dropped(Inquiry& inquiry, InquiryOutput& out);
  static void give_turns(Inquiries::value_type& inquiry, TimePoint now, InquiryOutput& out);
  static void look_for_late(Inquiry& inquiry, TimePoint now, InquiryOutput& out);
  static void tell_end(const Inquiries::value_type& inquiry, InquiryOutput& out);
  // Whatever happened to an inquiry; returns the one behind it.
  Inquiries::iterator go_on(Inquiries::iterator inquiry, TimePoint now, InquiryOutput& out);
  InquiryOutput lose(const std::string& agent_id, State state, TimePoint now);
  Inquiries::const_iterator find(AgentConnectionId reader) const;

  Inquiries inquiries_;
  std::uint64_t last_number_ = 0;
};

}  // namespace ddprun
