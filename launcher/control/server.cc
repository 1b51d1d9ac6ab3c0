#include "launcher/control/server.h"

#include <algorithm>
#include <boost/asio/post.hpp>
#include <iterator>
#include <utility>

#include "launcher/flight/json.h"
#include "rendezvous/http/status_page.h"

namespace ddprun {

using boost::system::error_code;
using What = UserRequest::What;

namespace {

// Room that is kept for the line about bytes that were left out.
constexpr std::size_t kNoticeBytes = 128;

constexpr std::array kStreams{OutputStream::kOut, OutputStream::kErr};

// Sends the lines that the reader has room for, and says how many bytes were left out.
void say_what_fits(OutputReader& reader, const std::vector<std::string>& lines) {
  std::uint64_t left_out = 0;
  for (const std::string& line : lines) {
    if (reader.room() > line.size() + kNoticeBytes) {
      reader.say(line);
    } else {
      left_out += line.size();
    }
  }
  if (left_out > 0) reader.say(dropped_line(left_out));
}

Moment moment() { return {.boot = BootClock::now(), .calendar = std::chrono::system_clock::now()}; }

}  // namespace

ControlServer::ControlServer(boost::asio::io_context& io, UniqueFd listener, ControlledNode node,
                             int slots)
    : io_(io), node_(std::move(node)), outputs_(static_cast<std::size_t>(slots)) {
  if (!listener.valid()) return;
  socket_ = std::make_shared<ControlSocket>(
      io, std::move(listener),
      [this](const ControlSessionPtr& session, std::string_view line) { take(session, line); });
  socket_->accept();
}

RecentOutput& ControlServer::output(LocalRank rank, OutputStream stream) {
  return outputs_.at(static_cast<std::size_t>(rank.value))[static_cast<std::size_t>(stream)];
}

Rank ControlServer::rank_of(LocalRank rank) const { return Rank(first_rank_ + rank.value); }

void ControlServer::take(const ControlSessionPtr& session, std::string_view line) {
  const Result<std::optional<UserRequest>> parsed = parse_request(line);
  if (!parsed) {
    return session->answer(outcome_line(Outcome::kRefused, parsed.error().cause));
  }
  const std::optional<UserRequest>& request = *parsed;
  if (!request) return session->answer(who_line(node_.view(), moment()));
  if (is_answered_by_nodes(request->what)) return show_workers(session, *request);
  ask_service(session, *request);
}

// --- requests for the service --------------------------------------------------------------------

void ControlServer::ask_service(const ControlSessionPtr& session, const UserRequest& request) {
  const std::uint64_t number = ++last_number_;
  Question question{session, request,
                    std::make_shared<boost::asio::steady_timer>(io_, kServicePatience)};
  UserRequest asked = request;
  asked.number = number;
  if (!node_.ask_service(asked)) {
    return without_service(question,
                           Error{.kind = ErrorKind::kConnection,
                                 .cause = "the rendezvous service cannot be reached now"});
  }
  question.patience->async_wait([this, number](error_code error) {
    if (error) return;
    const auto late = questions_.extract(number);
    if (!late) return;
    without_service(late.mapped(),
                    Error{.kind = ErrorKind::kTimeout,
                          .cause = "the rendezvous service has not answered within " +
                                   to_text(kServicePatience)});
  });
  questions_.emplace(number, std::move(question));
}

void ControlServer::answered(const Answer& answer) {
  const auto asked = questions_.extract(answer.number);
  if (!asked) return;
  const Question& question = asked.mapped();
  question.patience->cancel();
  const ControlSessionPtr& session = question.session;
  if (question.request.what == What::kStatus && answer.done) {
    return session->answer(
        status_line(view_with_ranks(), moment(), Result<std::string>(answer.page)));
  }
  session->say(outcome_line(answer.done ? Outcome::kDone : Outcome::kRefused, answer.text));
  if (question.request.what != What::kStop || !answer.done) return session->end();
  waiters_.push_back(session);
}

NodeView ControlServer::view_with_ranks() const {
  NodeView view = node_.view();
  view.ranks = node_.ranks();
  return view;
}

// Answers a request without the service. Status and stop cover this node only; the rest is
// refused.
void ControlServer::without_service(const Question& question, const Error& why) {
  using enum UserRequest::What;
  const ControlSessionPtr& session = question.session;
  switch (question.request.what) {
    case kStatus: return session->answer(status_line(view_with_ranks(), moment(), why));
    case kStop:
      session->say(outcome_line(Outcome::kDone, why.cause + ": stopping only this node"));
      waiters_.push_back(session);
      return node_.stop_here(question.request.at_once);
    case kRestart:
    case kSignal:
    case kLogs:
    case kFlight:
    case kStacks:
      return session->answer(outcome_line(Outcome::kRefused, why.cause + ": nothing was done"));
  }
}

void ControlServer::ended(int exit_code, const std::string& text) {
  flush_rests();
  const std::string line = ended_line(exit_code, text);
  for (const ControlSessionPtr& session : std::exchange(waiters_, {})) {
    session->answer(line);
  }
  for (const Follower& follower : std::exchange(followers_, {})) {
    if (follower.dropped_bytes > 0) follower.reader->say(dropped_line(follower.dropped_bytes));
    follower.reader->end_with_job(line);
  }
  for (const auto& [reader, rank] : std::exchange(stack_readers_, {})) reader->end();
  for (const auto& [number, pages] : std::exchange(inquiries_, {})) pages->end_with_job(line);
  is_over_ = true;
  watch_outputs();
}

// --- output for the service ----------------------------------------------------------------------

void ControlServer::direct(const OutputDirective& what) {
  std::erase_if(inquiries_, [](const auto& one) { return !one.second->is_open(); });
  const auto found = inquiries_.find(what.inquiry);
  const bool is_known = found != inquiries_.end();
  switch (what.what) {
    case OutputDirective::What::kBegin:
      if (!is_known) begin_inquiry(what);
      return;
    case OutputDirective::What::kNext:
      if (is_known) found->second->take_turn();
      return;
    case OutputDirective::What::kEnd:
      if (!is_known) return;
      found->second->close();
      inquiries_.erase(found);
      return watch_outputs();
  }
}

void ControlServer::begin_inquiry(const OutputDirective& what) {
  if (inquiries_.size() >= kMaxInquiries) {
    return node_.send_page({.inquiry = what.inquiry, .is_last = true});
  }
  const auto pages = std::make_shared<OutputPages>(
      what.inquiry, [this](const OutputPage& page) { node_.send_page(page); });
  if (what.flight) {
    show_flights(pages, what.rank);
  } else if (what.stacks) {
    show_stacks(pages, what.rank);
  } else {
    show(pages, what.rank, what.lines, what.follow && !is_over_);
  }
  if (is_over_) return pages->end_with_job({});
  inquiries_[what.inquiry] = pages;
  pages->begin();
}

void ControlServer::service_lost() {
  for (const auto& [number, pages] : std::exchange(inquiries_, {})) pages->close();
  watch_outputs();
}

// --- output, flight records, stacks --------------------------------------------------------------

void ControlServer::show_workers(const ControlSessionPtr& session, const UserRequest& request) {
  const NodeView node = node_.view();
  const bool is_here =
      !request.rank || std::ranges::count(node.workers, *request.rank, &WorkerView::rank) > 0;
  if (!is_here) {
    return session->answer(outcome_line(
        Outcome::kRefused, "rank " + to_text(*request.rank) + " does not run on this node"));
  }
  session->say(outcome_line(Outcome::kDone, ""));
  if (request.what == What::kFlight) return show_flights(session, request.rank);
  if (request.what == What::kStacks) return show_stacks(session, request.rank);
  show(session, request.rank, request.lines, request.follow);
}

// Sends the flight records. At most FlightFile::kMaxCalls calls fit into the reader's buffer.
// Corrupt data in a worker's page may make them longer; what does not fit is left out and
// reported.
void ControlServer::show_flights(const OutputReaderPtr& reader, std::optional<Rank> rank) {
  std::vector<std::string> lines;
  for (const RankFlight& flight : node_.flights(rank)) {
    std::ranges::move(flight_lines(flight), std::back_inserter(lines));
  }
  say_what_fits(*reader, lines);
  reader->end();
}

// Sends the stacks once the workers are inspected, one reader after the other.
void ControlServer::show_stacks(const OutputReaderPtr& reader, std::optional<Rank> rank) {
  stack_readers_.emplace_back(reader, rank);
  if (stack_readers_.size() == 1) inspect_next();
}

void ControlServer::inspect_next() {
  std::erase_if(stack_readers_, [](const auto& one) { return !one.first->is_open(); });
  if (stack_readers_.empty()) return;
  std::vector<WorkerSnapshot> workers = node_.snapshots();
  const std::string host = node_.view().host;
  for (WorkerSnapshot& worker : workers) {
    worker.rank = rank_of(worker.local_rank);
    worker.host = host;
  }
  const std::optional<Rank> rank = stack_readers_.front().second;
  if (rank) std::erase_if(workers, [&](const auto& worker) { return worker.rank != *rank; });
  const bool has_ended = rank && workers.empty();
  node_.inspect_stacks(std::move(workers),
                       [this, has_ended](const Result<std::vector<WorkerSnapshot>>& seen) {
                         if (has_ended && seen)
                           return send_stacks(invalid_argument("it has ended"));
                         send_stacks(seen);
                       });
}

// Answers the first reader.
void ControlServer::send_stacks(const Result<std::vector<WorkerSnapshot>>& workers) {
  if (stack_readers_.empty()) return;
  const auto [reader, rank] = std::move(stack_readers_.front());
  stack_readers_.pop_front();
  if (!workers) {
    reader->say(missing_line(rank ? "rank " + to_text(*rank) : "stacks of " + node_.view().host,
                             workers.error().cause));
  } else {
    std::vector<std::string> lines;
    for (const WorkerSnapshot& worker : *workers) lines.push_back(stack_line(worker));
    say_what_fits(*reader, lines);
  }
  reader->end();
  inspect_next();
}

void ControlServer::show(const OutputReaderPtr& reader, std::optional<Rank> rank, int lines,
                         bool follow) {
  reader->say(generation_line(node_.view()));
  Follower follower{.reader = reader, .rank = rank};
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const LocalRank local(static_cast<int>(i));
    if (rank && rank_of(local) != *rank) continue;
    for (const OutputStream stream : kStreams) {
      WholeLines& whole = follower.lines[{local.value, stream}];
      const std::string_view kept =
          output(local, stream).last_lines(static_cast<std::size_t>(lines));
      std::string text = whole.take(kept);
      if (!follow) text += whole.flush();
      if (!text.empty()) send_output(follower, {rank_of(local), stream}, text);
    }
  }
  if (!follow) {
    if (follower.dropped_bytes > 0) reader->say(dropped_line(follower.dropped_bytes));
    return reader->end();
  }
  followers_.push_back(std::move(follower));
  watch_outputs();
}

// Drops readers that have gone. Observes the streams only while a reader follows them.
void ControlServer::watch_outputs() {
  std::erase_if(followers_, [](const Follower& one) { return !one.reader->is_open(); });
  for (std::size_t i = 0; i < outputs_.size(); ++i) {
    const LocalRank local(static_cast<int>(i));
    for (const OutputStream stream : kStreams) {
      if (followers_.empty()) {
        output(local, stream).follow(nullptr);
        continue;
      }
      output(local, stream).follow([this, local, stream](std::string_view bytes) {
        hand_on(local, stream, bytes);
      });
    }
  }
}

void ControlServer::hand_on(LocalRank rank, OutputStream stream, std::string_view bytes) {
  bool someone_has_gone = false;
  for (Follower& follower : followers_) {
    someone_has_gone = someone_has_gone || !follower.reader->is_open();
    if (follower.rank && rank_of(rank) != *follower.rank) continue;
    const std::string lines = follower.lines[{rank.value, stream}].take(bytes);
    if (!lines.empty()) send_output(follower, {rank_of(rank), stream}, lines);
  }
  // The stream's own callback must not change its follower, so this runs later.
  if (someone_has_gone) boost::asio::post(io_, [this] { watch_outputs(); });
}

// Sends lines to a reader. A slow reader loses lines and is told how many bytes; workers never
// wait for a reader.
void ControlServer::send_output(Follower& follower, const OutputSource& source,
                                std::string_view lines) {
  OutputReader& reader = *follower.reader;
  // JSON makes bytes at most six times as long.
  constexpr std::size_t kAround = 256;
  constexpr std::size_t kPiece = 64 * 1024;
  static_assert(6 * kPiece + kAround < kMaxPageBytes, "a piece fits into a page");
  const auto fits = [&](std::size_t bytes) { return 6 * bytes + kAround <= reader.room(); };
  if (follower.dropped_bytes > 0 && fits(OutputReader::kMaxUnsentBytes / 16)) {
    reader.say(dropped_line(std::exchange(follower.dropped_bytes, 0)));
  }
  while (!lines.empty()) {
    std::string_view piece = lines.substr(0, kPiece);
    if (piece.size() < lines.size()) piece = piece.substr(0, piece.rfind('\n') + 1);
    if (piece.empty()) piece = lines.substr(0, kPiece);  // of one long line
    if (follower.dropped_bytes > 0 || !fits(piece.size())) {
      follower.dropped_bytes += lines.size();
      return;
    }
    reader.say(output_line(source, piece));
    lines.remove_prefix(piece.size());
  }
}

void ControlServer::flush_rests() {
  for (Follower& follower : followers_) {
    for (auto& [from, lines] : follower.lines) {
      std::string rest = lines.flush();
      if (rest.empty()) continue;
      send_output(follower, {rank_of(LocalRank(from.first)), from.second}, rest + "\n");
    }
  }
}

void ControlServer::generation_began() {
  flush_rests();
  const NodeView node = node_.view();
  if (node.assignment) first_rank_ = node.assignment->first_rank.value;
  for (std::array<RecentOutput, 2>& streams : outputs_) {
    for (RecentOutput& stream : streams) stream.end_line();
  }
  const std::string line = generation_line(node);
  for (const Follower& follower : followers_) {
    if (follower.reader->room() > line.size()) follower.reader->say(line);
  }
}

}  // namespace ddprun
