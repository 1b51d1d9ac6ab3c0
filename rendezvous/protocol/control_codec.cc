#include "rendezvous/protocol/control_codec.h"

#include <array>
#include <boost/mp11/algorithm.hpp>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/assert.h"
#include "base/concat.h"
#include "rendezvous/protocol/shared_fields.h"
#include "rendezvous/store/core/wire_format.h"

// The JSON form of every message: one list of fields per type, in the order of control_message.h.

namespace ddprun {

using Json = nlohmann::json;

namespace {

constexpr Bounds kUser{0, std::numeric_limits<std::uint32_t>::max()};
constexpr Bounds kLogLines{0, kMaxLogLines};
constexpr Bounds kMicroseconds{0, std::numeric_limits<std::uint32_t>::max()};

}  // namespace

template <class F>
void fields(F& at, Of<F, WorkerSnapshot>& one) {
  at.field("rank", one.rank, kCount);
  at.field("local_rank", one.local_rank, kCount);
  at.field("node_rank", one.node_rank, kCount);
  at.field("host", one.host, Name());
  at.field("pid", one.pid, kCount);
  at.field("flight", one.flight, kFlightStateWords);
  at.field("collective", one.collective, kFromZero);
  at.field("call", one.call, kMaxNameBytes);
  at.field("waited_ms", one.waited);
  at.field("is_late", one.is_late);
  at.field("is_stopped", one.is_stopped);
  at.field("doing", one.doing, kMaxNameBytes);
  at.optional("peer", one.peer >= 0, one.peer, kCount);
  at.optional("step", one.step, kStep);
  const bool is_of_world = one.group == 0;
  at.optional("group", !is_of_world, one.group);
  at.optional("group_name", !is_of_world, one.group_name, kMaxNameBytes);
  at.optional("group_ranks", !is_of_world && !one.group_ranks.empty(), one.group_ranks);
  at.optional("waits_in", !one.waits_in.empty(), one.waits_in, kMaxNameBytes);
  at.optional("frames", !one.frames.empty(), one.frames);
  at.optional("stderr_tail", !one.stderr_tail.empty(), one.stderr_tail);
}

template <class F>
void fields(F& at, Of<F, WorkTimes>& times) {
  at.optional("first_step", times.first_step, kStep);
  at.optional("since_first_ms", times.since_first > Duration(0), times.since_first);
  at.optional("checkpoint_ms", times.checkpoint > Duration(0), times.checkpoint);
  at.optional("stopped_ms", times.stopped > Duration(0), times.stopped);
}

template <class F>
void fields(F& at, Of<F, AgentStatus>& status) {
  at.field("phase", status.phase, kAgentPhaseWords);
  at.field("generation", status.generation);
  at.field("ends", status.ends);
  at.optional("more_ends", true, status.more_ends, kCount);
  at.field("store_port", status.store_port, kPort);
  at.field("leaving", status.leaving, kSignal);
  at.optional("checkpoints", true, status.checkpoints, kFromZero);
  at.optional("asked_to_save", status.asked_to_save, status.asked_to_save);
  at.optional("left", !status.left.empty(), status.left);
  at.optional("step", status.step, kStep);
  at.optional("times", status.times != WorkTimes(), status.times);
  at.optional("sightings", !status.snapshots.empty(), status.snapshots, Most{kMaxSnapshots});
  at.optional("unfit", !status.unfit.empty(), status.unfit, kMaxTextBytes);
  at.optional("log_trouble", !status.log_trouble.empty(), status.log_trouble, kMaxTextBytes);
}

template <class F>
void fields(F& at, Of<F, Hello>& hello) {
  if (!at.protocol(hello.protocol, hello.version)) return;
  at.field("instance", hello.instance, Name());
  at.field("job", hello.job);
  at.field("node", hello.node);
  at.field("status", hello.status);
  at.optional("assignment", hello.assignment);
  at.optional("cluster_job", !hello.cluster_job.empty(), hello.cluster_job, Name());
}

template <class F>
void fields(F& at, Of<F, Heartbeat>& heartbeat) {
  at.field("number", heartbeat.number);
  const bool has_ranks = !heartbeat.ranks.rows.empty();
  at.optional("generation", has_ranks, heartbeat.ranks.generation);
  at.optional("ranks", has_ranks, heartbeat.ranks.rows, Most{kMaxRankRows, "ranks"});
}

template <class F>
void fields(F& at, Of<F, Leave>& leave) {
  at.field("signal", leave.signal, kSignal);
  at.field("reason", leave.reason, kMaxTextBytes);
}

template <class F>
void fields(F& at, Of<F, UserRequest>& request) {
  at.field("what", request.what, kUserRequestWords);
  at.field("number", request.number);
  at.field("job", request.job, Name());
  at.field("by", request.by, Name());
  at.field("signal", request.signal, kSignal);
  at.field("at_once", request.at_once);
  at.optional("rank", request.rank, kCount);
  const bool is_logs = request.what == UserRequest::What::kLogs;
  at.optional("lines", is_logs, request.lines, kLogLines);
  at.optional("follow", is_logs, request.follow);
}

template <class F>
void fields(F& at, Of<F, Answer>& answer) {
  at.field("number", answer.number);
  at.field("done", answer.done);
  at.field("text", answer.text, kMaxTextBytes);
  at.optional("page", !answer.page.empty(), answer.page, kMaxPageBytes);
  at.optional("more", answer.more, answer.more);
  at.optional("no_workers", answer.no_workers, answer.no_workers);
}

template <class F>
void fields(F& at, Of<F, ForwardSignal>& forward_signal) {
  at.field("generation", forward_signal.generation);
  at.field("signal", forward_signal.signal, kSignal);
  at.optional("rank", forward_signal.rank, kCount);
}

template <class F>
void fields(F& at, Of<F, OutputDirective>& directive) {
  at.field("what", directive.what, kOutputDirectiveWords);
  at.field("inquiry", directive.inquiry);
  if (directive.what != OutputDirective::What::kBegin) return;
  at.field("lines", directive.lines, kLogLines);
  at.field("follow", directive.follow);
  at.optional("rank", directive.rank, kCount);
  at.optional("flight", directive.flight, directive.flight);
  at.optional("stacks", directive.stacks, directive.stacks);
}

template <class F>
void fields(F& at, Of<F, OutputPage>& page) {
  at.field("inquiry", page.inquiry);
  at.field("lines", page.lines, kMaxPageBytes);
  at.field("is_ready", page.is_ready);
  at.field("is_last", page.is_last);
}

template <class F>
void fields(F& at, Of<F, StepTimes>& one) {
  at.field("step", one.step, kStep);
  at.field("whole_us", one.whole_us, kMicroseconds);
  at.field("own_us", one.own_us, Most{kMaxReportedWorkers, "workers"});
}

template <class F>
void fields(F& at, Of<F, RankShares>& one) {
  at.field("local_rank", one.local_rank, kCount);
  fields(at, one.shares);
}

template <class F>
void fields(F& at, Of<F, StepReport>& report) {
  at.field("generation", report.generation);
  at.field("steps", report.steps, Most{kMaxReportedSteps, "steps"});
  at.optional("shares", !report.shares.empty(), report.shares, Most{kMaxReportedWorkers, "ranks"});
}

template <class F>
void fields(F& at, Of<F, SlowRank>& one) {
  at.field("local_rank", one.local_rank, kCount);
  at.field("cost", one.cost, kMaxRankTextBytes);
}

template <class F>
void fields(F& at, Of<F, StepsDirective>& directive) {
  at.field("generation", directive.generation);
  at.field("steps", directive.steps, Bounds{0, kMaxReportedSteps});
  at.optional("asks_shares", directive.asks_shares, directive.asks_shares);
  at.optional("slow", !directive.slow.empty(), directive.slow, Most{kMaxReportedWorkers, "ranks"});
  at.optional("lines", !directive.lines.empty(), directive.lines, Most{kMaxSlowLines, "lines"});
}

template <class F>
void fields(F& at, Of<F, Welcome>& welcome) {
  at.field("instance", welcome.instance, Name());
  at.field("heartbeat_interval_ms", welcome.heartbeat_interval, kShortest);
  at.field("agent_patience_ms", welcome.agent_patience, kShortest);
  at.field("embedded", welcome.embedded);
  at.field("host", welcome.host, Name());
  at.optional("own", welcome.own, welcome.own);
  at.optional("term", welcome.term > 0, welcome.term, kFromZero);
}

template <class F>
void fields(F& at, Of<F, Refused>& refused) {
  at.field("reason", refused.reason, kMaxTextBytes);
  at.optional("is_of_job", refused.is_of_job, refused.is_of_job);
  at.optional("term", refused.term > 0, refused.term, kFromZero);
}

template <class F>
void fields(F& at, Of<F, Silence>& silence) {
  at.field("reason", silence.reason, kMaxTextBytes);
  at.optional("leader", !silence.leader.empty(), silence.leader, Name());
}

template <class F>
void fields(F& at, Of<F, HeartbeatAck>& ack) {
  at.field("number", ack.number);
  at.optional("next_ms", true, ack.next);
  at.optional("watched", ack.is_watched, ack.is_watched);
  at.optional("ranks_ms", ack.ranks_every > Duration(0), ack.ranks_every);
}

template <class F>
void fields(F& at, Of<F, Wait>& wait) {
  at.field("reason", wait.reason, kMaxTextBytes);
  at.optional("generation", wait.generation >= Generation(0), wait.generation);
  at.optional("term", wait.term > 0, wait.term, kFromZero);
}

template <class F>
void fields(F& at, Of<F, Stop>& stop) {
  at.field("generation", stop.generation);
  at.field("reason", stop.reason, kMaxTextBytes);
  at.optional("at_once", stop.at_once, stop.at_once);
  at.optional("look", stop.look, stop.look);
  at.optional("term", stop.term > 0, stop.term, kFromZero);
}

template <class F>
void fields(F& at, Of<F, End>& end) {
  at.field("verdict", end.verdict);
  at.optional("term", end.term > 0, end.term, kFromZero);
  at.optional("runs_end_commands", end.runs_end_commands, end.runs_end_commands);
}

template <class F>
void fields(F& at, Of<F, Knock>& knock) {
  if (!at.protocol(knock.protocol, knock.version)) return;
  at.optional("method", knock.method != ProofMethod::kKey, knock.method, kProofMethodWords);
  at.field("job", knock.job, Name());
  at.field("nonce", knock.nonce, Name());
}

template <class F>
void fields(F& at, Of<F, Proof>& proof) {
  at.field("proof", proof.proof, Name());
}

template <class F>
void fields(F& at, Of<F, Challenge>& challenge) {
  at.field("nonce", challenge.nonce, Name());
  at.optional("user", challenge.user, kUser);
}

template <class F>
void fields(F& at, Of<F, Proven>& proven) {
  at.field("proof", proven.proof, Name());
}

template <class F>
void fields(F&, Of<F, Open>&) {}

template <class F>
void fields(F&, Of<F, NoHandshake>&) {}

namespace {

std::string too_large(std::size_t bytes, std::size_t limit) {
  return concat(bytes, " bytes are more than the limit of ", limit);
}

// The "type" of each alternative, in the order of the variants.
template <class Message>
constexpr std::nullptr_t kTypes{};
template <>
constexpr std::array<const char*, 7> kTypes<AgentMessage>{"hello",   "status", "heartbeat", "leave",
                                                          "request", "output", "steps"};
template <>
constexpr std::array<const char*, 12> kTypes<ServiceMessage>{
    "welcome", "refused", "silence", "heartbeat_ack", "wait",        "assignment",
    "stop",    "end",     "answer",  "pass_on",       "tell_output", "tell_steps"};
// The first entry stands for every type that is not in the list.
template <>
constexpr std::array<const char*, 3> kTypes<AgentHandshakeMessage>{"", "knock", "proof"};
template <>
constexpr std::array<const char*, 6> kTypes<ServiceHandshakeMessage>{
    "", "refused", "silence", "challenge", "proven", "open"};

Result<std::string> frame(const Json& json, const char* type) {
  const std::string text = text_of(json);
  if (text.size() > kMaxControlFrameBytes) {
    return Error{.kind = ErrorKind::kProtocol,
                 .doing = std::string("write a control message of type ") + type,
                 .cause = too_large(text.size(), kMaxControlFrameBytes)};
  }
  std::string bytes(kControlMagic);
  put_u32(bytes, static_cast<std::uint32_t>(text.size()));
  return bytes + text;
}

}  // namespace

template <class Message>
Result<std::string> encode(const Message& message) {
  Json json = std::visit([](const auto& alternative) { return Json(alternative); }, message);
  const char* type = kTypes<Message>[message.index()];
  DDPRUN_ASSERT(*type != '\0', "only messages of the handshake are written here");
  json["type"] = type;
  return frame(json, type);
}

template <class Message>
Result<Message> decode(std::string_view text) {
  const auto bad = [](std::string cause) {
    return Error{.kind = ErrorKind::kProtocol,
                 .doing = "read a control message",
                 .cause = printable(std::move(cause))};
  };
  constexpr auto& types = kTypes<Message>;
  static_assert(types.size() == std::variant_size_v<Message>);
  try {
    const Json json = Json::parse(text);
    const std::string& type = json.at("type").get_ref<const std::string&>();
    for (std::size_t i = 0; i < types.size(); ++i) {
      if (type != types[i]) continue;
      return boost::mp11::mp_with_index<types.size()>(i, [&](auto index) {
        return Message(json.get<std::variant_alternative_t<index, Message>>());
      });
    }
    if constexpr (std::is_same_v<std::variant_alternative_t<0, Message>, NoHandshake>) {
      return Message(NoHandshake());
    }
    Error unknown = bad("unknown type '" + type + "'");
    unknown.kind = ErrorKind::kUnsupported;
    return unknown;
  } catch (const Json::exception& exception) {
    return bad(exception.what());
  }
}

template Result<std::string> encode(const AgentMessage& message);
template Result<std::string> encode(const ServiceMessage& message);
template Result<std::string> encode(const AgentHandshakeMessage& message);
template Result<std::string> encode(const ServiceHandshakeMessage& message);
template Result<AgentMessage> decode(std::string_view json);
template Result<ServiceMessage> decode(std::string_view json);
template Result<AgentHandshakeMessage> decode(std::string_view json);
template Result<ServiceHandshakeMessage> decode(std::string_view json);

Result<std::optional<std::string_view>> FrameReader::next() {
  const auto bad = [](std::string cause) {
    return Error{
        .kind = ErrorKind::kProtocol, .doing = "read a control frame", .cause = std::move(cause)};
  };
  buffer_.consume(std::exchange(handed_out_, 0));
  const std::string_view bytes = buffer_.bytes();
  if (!kControlMagic.starts_with(bytes.substr(0, kControlMagic.size()))) {
    return bad(concat("it does not begin with ", kControlMagic));
  }
  if (bytes.size() < kControlHeaderBytes) return std::optional<std::string_view>();
  const std::size_t length = get_u32(bytes.substr(kControlMagic.size()));
  if (length > limit_) return bad(too_large(length, limit_));
  if (bytes.size() < kControlHeaderBytes + length) return std::optional<std::string_view>();
  handed_out_ = kControlHeaderBytes + length;
  return std::optional(bytes.substr(kControlHeaderBytes, length));
}

}  // namespace ddprun
