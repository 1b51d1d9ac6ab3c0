#include "rendezvous/membership/core/output_inquiries.h"

#include <algorithm>
#include <utility>

#include "base/assert.h"
#include "base/concat.h"
#include "base/earlier.h"
#include "rendezvous/protocol/core/list_of_names.h"

namespace ddprun {
namespace {

// Returns what the request asks for.
std::string source_of(const UserRequest& request) {
  switch (request.what) {
    case UserRequest::What::kFlight: return "flight record";
    case UserRequest::What::kStacks: return "stack";
    default: return "output";
  }
}

bool can_answer(const OutputInquiries::Node& node, UserRequest::What what) {
  switch (what) {
    case UserRequest::What::kFlight: return node.supports_flight;
    case UserRequest::What::kStacks: return node.supports_stacks;
    default: return node.supports_output;
  }
}

}  // namespace

// --- one inquiry --------------------------------------------------------------------------------

bool OutputInquiries::is_open(State state) {
  return state == kAsked || state == kQuiet || state == kReady || state == kTurn;
}

void OutputInquiries::enter(Inquiry& inquiry, Source& source, State state) {
  if (is_open(source.state)) --inquiry.open;
  if (is_open(state)) ++inquiry.open;
  if (source.state == kTurn) --inquiry.turns;
  if (state == kTurn) ++inquiry.turns;
  source.state = state;
}

void OutputInquiries::await(Inquiry& inquiry, Source& source, State state) const {
  enter(inquiry, source, state);
  source.due = now_ + kAgentPatience;
  keep_earlier(inquiry.due, source.due);
}

void OutputInquiries::ask(Inquiries::value_type& entry, const Node& node, int lines) {
  auto& [number, inquiry] = entry;
  Source& source = inquiry.sources[node.agent_id];
  source.host = node.host;
  await(inquiry, source, kAsked);
  out_.directives.push_back(
      {node.agent_id,
       OutputDirective{.what = OutputDirective::What::kBegin,
                       .inquiry = number,
                       .rank = inquiry.request.rank,
                       .lines = lines,
                       .follow = inquiry.request.follow,
                       .flight = inquiry.request.what == UserRequest::What::kFlight,
                       .stacks = inquiry.request.what == UserRequest::What::kStacks}});
}

void OutputInquiries::say(Inquiry& inquiry, Answer words) {
  const std::size_t bytes = words.page.size() + words.text.size();
  const bool is_news = words.page.empty();  // short; sent even while output is dropped
  const std::size_t most = is_news ? 2 * kMaxUnread : kMaxUnread;
  if (inquiry.unread + bytes > most || (!is_news && inquiry.dropped > 0)) {
    inquiry.dropped += words.page.size();
    return;
  }
  inquiry.unread += bytes;
  words.number = inquiry.request.number;
  words.done = true;
  words.more = true;
  out_.sends.push_back({inquiry.reader, std::move(words)});
}

void OutputInquiries::say_dropped(Inquiry& inquiry) {
  if (inquiry.dropped == 0) return;
  const std::uint64_t dropped = std::exchange(inquiry.dropped, 0);
  say(inquiry,
      {.text = concat("about ", dropped,
                      " bytes of output are missing here: they came faster than they were read")});
}

void OutputInquiries::give_turns(Inquiries::value_type& entry) {
  auto& [number, inquiry] = entry;
  while (!inquiry.ready.empty() && inquiry.turns + inquiry.unread / kOutputPageBytes < kTurns) {
    const std::string agent_id = std::move(inquiry.ready.front());
    inquiry.ready.pop_front();
    await(inquiry, inquiry.sources.at(agent_id), kTurn);
    out_.directives.push_back(
        {agent_id, OutputDirective{.what = OutputDirective::What::kNext, .inquiry = number}});
  }
}

void OutputInquiries::look_for_late(Inquiry& inquiry) {
  if (!inquiry.due || now_ < *inquiry.due) return;
  inquiry.due.reset();
  std::vector<std::string> late;
  for (auto& [agent_id, source] : inquiry.sources) {
    if (source.state != kAsked && source.state != kTurn) continue;
    if (now_ >= source.due) {
      enter(inquiry, source, kLate);
      late.push_back(source.host);
    } else {
      keep_earlier(inquiry.due, source.due);
    }
  }
  if (late.empty()) return;
  say(inquiry,
      {.text = concat("no answer within ", kAgentPatience, " from ", list_of(late), ": the ",
                      source_of(inquiry.request), " of its workers is missing")});
}

// Sends kEnd to the agents that may still have output.
void OutputInquiries::direct_end(const Inquiries::value_type& entry) {
  for (const auto& [agent_id, source] : entry.second.sources) {
    if (source.state == kDone || source.state == kGone) continue;
    out_.directives.push_back(
        {agent_id, OutputDirective{.what = OutputDirective::What::kEnd, .inquiry = entry.first}});
  }
}

OutputInquiries::Inquiries::iterator OutputInquiries::go_on(Inquiries::iterator at) {
  Inquiry& inquiry = at->second;
  look_for_late(inquiry);
  give_turns(*at);
  const bool awaits_end = inquiry.request.follow && !inquiry.end;
  const bool is_late = inquiry.end && now_ >= inquiry.end_due;
  if (!is_late && (inquiry.open > 0 || awaits_end)) return std::next(at);
  say_dropped(inquiry);
  if (inquiry.request.follow) {
    out_.sends.push_back({inquiry.reader, std::move(*inquiry.end), inquiry.end_after, true});
  } else {
    Answer last{.number = inquiry.request.number, .done = inquiry.has_answered};
    if (!last.done) {
      last.text = "no node of job '" + inquiry.job + "' has sent its " + source_of(inquiry.request);
    }
    out_.sends.push_back({inquiry.reader, std::move(last), 0, true});
  }
  direct_end(*at);
  return inquiries_.erase(at);
}

// --- readers ------------------------------------------------------------------------------------

bool OutputInquiries::has_room(const std::string& job) const {
  const auto of_job =
      std::ranges::count_if(inquiries_, [&](const auto& one) { return one.second.job == job; });
  return inquiries_.size() < kOfAll && static_cast<std::size_t>(of_job) < kOfJob;
}

InquiryOutput OutputInquiries::begin(AgentConnectionId reader, const std::string& job,
                                     const UserRequest& request, const std::vector<Node>& nodes,
                                     TimePoint now) {
  DDPRUN_ASSERT(!is_reader(reader), "a reader that is gone has no inquiry");
  now_ = now;
  const auto at = inquiries_.try_emplace(++last_number_).first;
  Inquiry& inquiry = at->second;
  inquiry.reader = reader;
  inquiry.job = job;
  inquiry.request = request;
  say(inquiry, {});  // tells the reader that the request is accepted
  ask_nodes(at, nodes, request.lines);
  return std::exchange(out_, {});
}

InquiryOutput OutputInquiries::see(std::uint64_t number, const std::vector<Node>& nodes,
                                   TimePoint now) {
  now_ = now;
  const auto at = inquiries_.find(number);
  if (at != inquiries_.end()) ask_nodes(at, nodes, kMaxLogLines);
  return std::exchange(out_, {});
}

void OutputInquiries::ask_nodes(Inquiries::iterator at, const std::vector<Node>& nodes, int lines) {
  Inquiry& inquiry = at->second;
  std::vector<std::string> unreachable;
  std::vector<std::string> too_old;
  for (const Node& node : nodes) {
    const auto known = inquiry.sources.find(node.agent_id);
    const bool is_new = known == inquiry.sources.end();
    const bool is_back = !is_new && known->second.state == kGone && node.is_connected;
    if (!is_new && !is_back) continue;
    if (!can_answer(node, inquiry.request.what)) {
      inquiry.sources[node.agent_id] = {node.host, kDone};
      too_old.push_back(node.host);
    } else if (!node.is_connected) {
      inquiry.sources[node.agent_id] = {node.host, kGone};
      unreachable.push_back(node.host);
    } else {
      ask(*at, node, is_new ? lines : 0);
    }
  }
  const std::string missing = "the " + source_of(inquiry.request) + " of its workers is missing; ";
  if (!unreachable.empty()) {
    say(inquiry, {.text = missing + "cannot reach: " + list_of(unreachable)});
  }
  if (!too_old.empty()) {
    say(inquiry, {.text = missing + "too old to send it: ddprun on " + list_of(too_old)});
  }
  go_on(at);
}

InquiryOutput OutputInquiries::reader_has_room(AgentConnectionId reader, TimePoint now) {
  now_ = now;
  const auto at = find(reader);
  if (at == inquiries_.end()) return {};
  at->second.unread = 0;
  say_dropped(at->second);
  go_on(at);
  return std::exchange(out_, {});
}

InquiryOutput OutputInquiries::reader_gone(AgentConnectionId reader) {
  const auto found = find(reader);
  if (found == inquiries_.end()) return {};
  direct_end(*found);
  inquiries_.erase(found);
  return std::exchange(out_, {});
}

std::vector<AgentConnectionId> OutputInquiries::readers() const {
  std::vector<AgentConnectionId> all;
  for (const auto& [number, inquiry] : inquiries_) all.push_back(inquiry.reader);
  return all;
}

OutputInquiries::Inquiries::iterator OutputInquiries::find(AgentConnectionId reader) {
  return std::ranges::find(inquiries_, reader, reader_of);
}

bool OutputInquiries::is_reader(AgentConnectionId reader) const {
  return std::ranges::count(inquiries_, reader, reader_of) > 0;
}

// --- agents -------------------------------------------------------------------------------------

InquiryOutput OutputInquiries::handle_page(const std::string& agent_id, OutputPage page,
                                           TimePoint now) {
  now_ = now;
  const auto at = inquiries_.find(page.inquiry);
  const bool is_wanted = at != inquiries_.end() && at->second.sources.contains(agent_id);
  if (!is_wanted) {
    if (page.is_last) return {};
    out_.directives.push_back(
        {agent_id, OutputDirective{.what = OutputDirective::What::kEnd, .inquiry = page.inquiry}});
    return std::exchange(out_, {});
  }
  Inquiry& inquiry = at->second;
  Source& source = inquiry.sources.at(agent_id);
  if (source.state == kDone) return {};
  inquiry.has_answered = true;
  if (!page.lines.empty()) say(inquiry, {.page = std::move(page.lines)});
  const bool was_ready = source.state == kReady;
  const State next = page.is_last ? kDone : page.is_ready ? kReady : kQuiet;
  enter(inquiry, source, next);
  if (was_ready && next != kReady) std::erase(inquiry.ready, agent_id);
  if (!was_ready && next == kReady) inquiry.ready.push_back(agent_id);
  go_on(at);
  return std::exchange(out_, {});
}

InquiryOutput OutputInquiries::agent_gone(const std::string& agent_id, TimePoint now) {
  return lose(agent_id, kGone, now);
}

InquiryOutput OutputInquiries::agent_left(const std::string& agent_id, TimePoint now) {
  return lose(agent_id, kDone, now);
}

InquiryOutput OutputInquiries::lose(const std::string& agent_id, State state, TimePoint now) {
  now_ = now;
  for (auto at = inquiries_.begin(); at != inquiries_.end();) {
    Inquiry& inquiry = at->second;
    const auto found = inquiry.sources.find(agent_id);
    if (found == inquiry.sources.end() || found->second.state == kDone) {
      ++at;
      continue;
    }
    Source& source = found->second;
    const bool is_news = is_open(source.state) && state == kGone && !inquiry.end;
    std::erase(inquiry.ready, agent_id);
    enter(inquiry, source, state);
    if (is_news) {
      say(inquiry, {.text = "the connection with " + source.host +
                            " is lost: the output of its workers is missing until it reconnects"});
    }
    at = go_on(at);
  }
  return std::exchange(out_, {});
}

// --- the job ------------------------------------------------------------------------------------

std::vector<OutputInquiries::Followed> OutputInquiries::followed(const std::string& job) const {
  std::vector<Followed> all;
  for (const auto& [number, inquiry] : inquiries_) {
    const bool goes_on = inquiry.request.follow && !inquiry.end;
    if (goes_on && inquiry.job == job) all.push_back({number, inquiry.request.rank});
  }
  return all;
}

InquiryOutput OutputInquiries::job_ended(const std::string& job, const Verdict& verdict,
                                         std::uint64_t after, TimePoint now) {
  now_ = now;
  for (auto at = inquiries_.begin(); at != inquiries_.end();) {
    Inquiry& inquiry = at->second;
    if (inquiry.job != job || inquiry.end) {
      ++at;
      continue;
    }
    inquiry.end = End{verdict};
    inquiry.end_after = after;
    inquiry.end_due = now + kAgentPatience;
    at = go_on(at);
  }
  return std::exchange(out_, {});
}

InquiryOutput OutputInquiries::job_gone(const std::string& job, const Silence& why) {
  std::erase_if(inquiries_, [&](const auto& one) {
    if (one.second.job != job) return false;
    out_.sends.push_back({one.second.reader, why, 0, true});
    return true;
  });
  return std::exchange(out_, {});
}

InquiryOutput OutputInquiries::tick(TimePoint now) {
  now_ = now;
  for (auto at = inquiries_.begin(); at != inquiries_.end();) at = go_on(at);
  return std::exchange(out_, {});
}

std::optional<TimePoint> OutputInquiries::deadline() const {
  std::optional<TimePoint> earliest;
  for (const auto& [number, inquiry] : inquiries_) {
    keep_earlier(earliest, inquiry.due);
    if (inquiry.end) keep_earlier(earliest, inquiry.end_due);
  }
  return earliest;
}

}  // namespace ddprun
