// Fuzzes the rendezvous service from its codec on: a real JobTable and agents that send anything
// that the decoder accepts. Time passes, connections end, the disk stores or refuses changes, and
// the service restarts. Each line of the input is one event:
//
//   3h{...}  connection 3 sends a Hello: an honest one, with the JSON merged into it
//   3s{...}  an AgentStatus, 3b{...} a Heartbeat, 3l{...} a Leave, 3q{...} a UserRequest,
//            3o{...} an OutputPage: likewise
//   3d       everything that was sent to connection 3 has left
//   3x       connection 3 ends; the next event on it opens a new one. 9 is a local agent
//   +500     500 ms pass
//   c, o     admission is closed; is open again
//   w        all changes so far are durable
//   t        jobs that began after the last durable change are taken back
//   r        the service is killed, and continues from the durable state
//
// Each story runs twice: with a service that has a disk, and with one that has none. The second
// one knows nothing of its earlier life.
//
// An agent is honest about what it was told last. In the JSON the text "#5000" means 5000
// letters, because a fuzzer's inputs are short and some limits are large. An input gets few of
// such letters, so that its time goes into the service and not into copies of a letter.
//
//   scripts/build fuzz job_table_fuzz
//   build/fuzz/bin/job_table_fuzz -max_total_time=60 tests/fuzz/corpus/job_table
//
// Every build replays the corpus through the same function (corpus_test.cc).
#include <algorithm>
#include <array>
#include <charconv>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "base/assert.h"
#include "rendezvous/membership/core/job_table.h"
#include "rendezvous/membership/core/outbox.h"
#include "rendezvous/persistence/state_codec.h"
#include "rendezvous/protocol/control_codec.h"
#include "tests/fuzz/fuzz_lines.h"

namespace ddprun {
namespace {

using Json = nlohmann::json;

constexpr std::size_t kSlots = 10;
constexpr std::size_t kLocalSlot = 9;
// The clock of a host that has been up for a while and will be up for at most some years.
constexpr TimePoint kStart{std::chrono::hours(1)};
constexpr Duration kLongestStory = std::chrono::hours(24 * 365 * 10);
constexpr int kTicksAtOnce = 20;
constexpr int kMostLines = 64;
constexpr std::size_t kLongestText = 70'000;
constexpr std::size_t kMostLetters = 4 * kLongestText;  // of an input

void expand_texts(Json& json, std::size_t& letters_left) {
  if (json.is_structured()) {
    for (Json& inner : json) expand_texts(inner, letters_left);
    return;
  }
  if (!json.is_string()) return;
  const std::string& text = json.get_ref<const std::string&>();
  std::size_t length = 0;
  if (!text.starts_with('#')) return;
  if (std::from_chars(text.data() + 1, text.data() + text.size(), length).ec != std::errc()) return;
  length = std::min({length, kLongestText, letters_left});
  letters_left -= length;
  json = std::string(length, 'x');
}

// Returns the message as a dishonest agent sends it: with the patch merged in.
std::string merged(const AgentMessage& message, const Json& patch, std::size_t& letters_left) {
  Json json = Json::parse(encode(message)->substr(kControlHeaderBytes));
  json.merge_patch(patch);
  expand_texts(json, letters_left);
  return json.dump();
}

class Story {
 public:
  explicit Story(bool has_disk) : has_disk_(has_disk) {
    options_.host = "service";
    begin(ServiceState());
  }

  void go_on(std::string_view line) {
    if (line.empty()) return;
    const char what = line[0];
    if (what >= '0' && what < '0' + static_cast<int>(kSlots)) {
      if (line.size() > 1)
        connection(static_cast<std::size_t>(what - '0'), line[1], line.substr(2));
    } else if (what == '+') {
      pass_time(line.substr(1));
    } else if (what == 'c') {
      table_->close_admission("the disk is full");
      DDPRUN_ASSERT(table_->why_closed(), "closed is closed");
    } else if (what == 'o') {
      table_->close_admission(std::nullopt);
    } else if (what == 'w') {
      make_durable();
    } else if (what == 't' && has_disk_) {
      perform(table_->withdraw_after(outbox_.durable(), "the disk is full"));
    } else if (what == 'r') {
      restart();
    }
    check();
  }

 private:
  struct Slot {
    AgentConnectionId connection;  // 0: no open connection
    // What the agent of this connection was told.
    std::string instance;
    std::optional<Assignment> assignment;
    std::int64_t generation = -1;
  };

  void connection(std::size_t index, char what, std::string_view text) {
    Slot& slot = slots_[index];
    if (what == 'x') return disconnect(slot);
    if (what == 'd') return perform(table_->all_sent(slot.connection, now_));
    std::optional<AgentMessage> message = plain(index, what);
    if (!message) return;
    // A patch that is not a JSON object leaves the honest message, which needs no decoder.
    const Json patch = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (patch.is_object()) {
      const Result<AgentMessage> decoded =
          decode<AgentMessage>(merged(*message, patch, letters_left_));
      if (!decoded) return disconnect(slot);
      message = *decoded;
    }
    if (slot.connection.value == 0) slot.connection = AgentConnectionId(++connections_);
    const bool local = index == kLocalSlot;
    perform(table_->receive({.connection = slot.connection,
                             .local = local,
                             .service_address = local ? "" : "10.0.0.100",
                             .peer_address = local ? "" : "10.0.0." + std::to_string(index)},
                            *message, now_));
  }

  // Returns the message that an honest agent would send.
  std::optional<AgentMessage> plain(std::size_t index, char what) const {
    const Slot& slot = slots_[index];
    const std::string name = "node" + std::to_string(index);
    const AgentStatus status{.generation = Generation(slot.generation), .store_port = 29500};
    switch (what) {
      case 'h': {
        Hello hello;
        hello.version = "1";
        hello.instance = slot.instance;
        hello.job = {.id = "j", .nodes = {2, 2}, .max_restarts = 1};
        hello.node = {.agent_id = "agent" + std::to_string(index),
                      .host = name,
                      .slots = 2,
                      .node_rank = {},
                      .address = "10.0.0." + std::to_string(index)};
        hello.status = status;
        hello.assignment = slot.assignment;
        return hello;
      }
      case 's': return status;
      case 'b': return Heartbeat{7};
      case 'p': return StepReport{.generation = Generation(0), .steps = {{1, 9, {8}}, {2, 9, {7}}}};
      case 'l': return Leave{.reason = "it was told to"};
      case 'q':
        return UserRequest{
            .what = UserRequest::What::kRestart, .number = 1, .job = "j", .by = "a user"};
      case 'o': return OutputPage{.inquiry = 1, .lines = "{}\n", .is_ready = true};
      default: return std::nullopt;
    }
  }

  void disconnect(Slot& slot) {
    if (slot.connection.value == 0) return;
    perform(table_->disconnected(slot.connection, now_));
    outbox_.forget(slot.connection);
    DDPRUN_ASSERT(!table_->has_agent(slot.connection), "who is gone is not here");
    slot.connection = {};
  }

  // Calls tick() at each deadline, at its time, as the server does.
  void pass_time(std::string_view digits) {
    std::int64_t ms = 0;
    std::from_chars(digits.data(), digits.data() + digits.size(), ms);
    const Duration longest = kStart + kLongestStory - now_;
    const auto most = std::chrono::duration_cast<std::chrono::milliseconds>(longest).count();
    const TimePoint until = now_ + std::chrono::milliseconds(std::clamp<std::int64_t>(ms, 0, most));
    for (int ticks = 0; ticks < kTicksAtOnce; ++ticks) {
      const std::optional<TimePoint> due = table_->deadline();
      if (!due || *due > until) break;
      now_ = std::max(now_, *due);
      perform(table_->tick(now_));
      const std::optional<TimePoint> next = table_->deadline();
      DDPRUN_ASSERT(!next || *next > now_, "what was due is done: a timer does not spin");
    }
    now_ = until;
    perform(table_->tick(now_));
  }

  void begin(const ServiceState& past) {
    options_.service_id = "life-" + std::to_string(++lives_);
    table_.emplace(options_, past, now_);
    if (has_disk_) table_->note_durable(0);
  }

  void make_durable() {
    if (!has_disk_) return;
    std::vector<JournalEntry> entries;
    for (const ServiceOutput::Change& change : unsafe_) {
      entries.push_back(to_entry(change.what));
      // 0xff is a byte that a journal must not contain.
      DDPRUN_ASSERT(entries.back().value.find('\xff') == std::string::npos, "it is text");
    }
    unsafe_.clear();
    apply_entries(entries, image_);
    table_->note_durable(last_change_);
    for (const ServiceOutput::Send& send : outbox_.take_durable(last_change_)) deliver(send);
  }

  void restart() {
    const Result<ServiceState> past = decode_state(image_);
    DDPRUN_ASSERT(past, "what a service has written, it can read");
    for (Slot& slot : slots_) slot.connection = {};
    unsafe_.clear();
    last_change_ = 0;
    outbox_ = Outbox();
    if (!has_disk_) options_.earlier_agents_until = now_ + options_.times.lease;
    begin(*past);
  }

  void perform(const ServiceOutput& out) {
    for (const ServiceOutput::Change& change : out.changes) {
      DDPRUN_ASSERT(change.number == last_change_ + 1, "changes are numbered one by one");
      last_change_ = change.number;
      if (has_disk_) unsafe_.push_back(change);
    }
    for (const ServiceOutput::Send& send : out.sends) {
      DDPRUN_ASSERT(send.after <= last_change_, "nothing waits for what does not come");
      if (!has_disk_) {
        deliver(send);
      } else if (const std::optional<ServiceOutput::Send> at_once = outbox_.put(send)) {
        deliver(*at_once);
      }
    }
    for (const AgentConnectionId id : out.closes) {
      for (Slot& slot : slots_) {
        if (slot.connection == id) disconnect(slot);
      }
    }
    for (const auto* lines : {&out.log, &out.provoked}) {
      for (const std::string& line : *lines) DDPRUN_ASSERT(!line.empty(), "a line says something");
    }
  }

  void deliver(const ServiceOutput::Send& send) {
    const auto to = std::find_if(slots_.begin(), slots_.end(), [&](const Slot& slot) {
      return slot.connection == send.connection;
    });
    DDPRUN_ASSERT(to != slots_.end(), "only who is here is told something");
    const Result<std::string> frame = encode(send.message);
    DDPRUN_ASSERT(frame, "an answer fits into a frame");
    const auto read = decode<ServiceMessage>(frame->substr(kControlHeaderBytes));
    DDPRUN_ASSERT(read, "an agent can read what it is told");
    if (const Welcome* welcome = std::get_if<Welcome>(&*read)) to->instance = welcome->instance;
    if (const Assignment* assignment = std::get_if<Assignment>(&*read)) {
      to->assignment = *assignment;
      to->generation = assignment->generation.value;
    }
  }

  // --- what must hold after every event ---

  void check() const {
    std::set<std::string> ids;
    for (const Membership* job : table_->jobs()) {
      DDPRUN_ASSERT(job && ids.insert(job->spec().id).second, "a job is listed once");
      DDPRUN_ASSERT(table_->find(job->spec().id) == job, "under its name");
      check_job(*job);
    }
  }

  static void check_job(const Membership& job) {
    DDPRUN_ASSERT(job.restarts_used() <= job.spec().max_restarts, "the budget is kept");
    DDPRUN_ASSERT((job.phase() == JobPhase::kEnded) == job.verdict().has_value(),
                  "a job that has ended says how");
    DDPRUN_ASSERT(job.events().size() <= Membership::kEventsKept, "few events are kept");
    if (job.phase() != JobPhase::kRunning) return;
    std::set<int> node_ranks;
    for (const auto& [id, member] : job.members()) {
      if (!member.assignment) continue;
      const Assignment& part = *member.assignment;
      DDPRUN_ASSERT(part.generation == job.generation(), "one generation runs");
      DDPRUN_ASSERT(node_ranks.insert(part.node_rank.value).second, "every place has one node");
      DDPRUN_ASSERT(part.node_rank.value < part.node_count, "and is one of them");
      DDPRUN_ASSERT(part.node_count <= job.spec().nodes.max, "there are no more than asked for");
      DDPRUN_ASSERT(part.first_rank.value < part.world_size, "ranks are in the world");
    }
  }

  bool has_disk_;
  std::size_t letters_left_ = kMostLetters;
  ServiceOptions options_;
  std::optional<JobTable> table_;
  TimePoint now_ = kStart;
  std::array<Slot, kSlots> slots_;
  std::uint64_t connections_ = 0;
  int lives_ = 0;
  std::uint64_t last_change_ = 0;  // of this life
  Outbox outbox_;                  // messages that wait for the disk
  std::vector<ServiceOutput::Change> unsafe_;
  JournalImage image_;  // what is on the disk
};

}  // namespace
}  // namespace ddprun

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddprun;
  for (const bool has_disk : {true, false}) {
    std::string_view lines(reinterpret_cast<const char*>(data), size);
    Story story(has_disk);
    for (int i = 0; i < kMostLines && !lines.empty(); ++i) story.go_on(take_line(lines));
  }
  return 0;
}
