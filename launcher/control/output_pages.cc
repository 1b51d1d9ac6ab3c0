#include "launcher/control/output_pages.h"

#include "launcher/control/protocol.h"

namespace ddprun {

namespace {

// Bytes of a page besides the line: its line end, and the report of dropped bytes.
constexpr std::size_t kAround = 128;

}  // namespace

void OutputPages::begin() {
  has_begun_ = true;
  send({});
}

void OutputPages::take_turn() {
  if (is_open_ && has_begun_) send(next_page());
}

void OutputPages::close() {
  is_open_ = false;
  lines_.clear();
  bytes_ = 0;
}

void OutputPages::say(std::string_view line) {
  if (!is_open_ || is_ended_) return;
  if (line.size() + kAround > kMaxPageBytes) {
    left_out_ += line.size() + 1;
    return;
  }
  lines_.emplace_back(line);
  lines_.back() += '\n';
  bytes_ += lines_.back().size();
  keep(kMaxUnsentBytes);
  if (has_begun_ && !is_known_ready_) send({});
}

void OutputPages::end() {
  if (!is_open_ || std::exchange(is_ended_, true)) return;
  if (has_begun_ && lines_.empty()) send({});
}

// Ignores the last line: the service itself reports how the job ended, once for all nodes.
void OutputPages::end_with_job(std::string_view) {
  if (!is_open_) return;
  is_ended_ = true;
  has_begun_ = true;
  keep(kLastBytes);
  do {
    send(next_page());
  } while (is_open_);
}

// Drops the oldest lines until at most this many bytes remain.
void OutputPages::keep(std::size_t bytes) {
  while (bytes_ > bytes) {
    left_out_ += lines_.front().size();
    bytes_ -= lines_.front().size();
    lines_.pop_front();
  }
}

std::string OutputPages::next_page() {
  std::string page;
  if (left_out_ > 0) page = dropped_line(std::exchange(left_out_, 0)) + "\n";
  bool has_lines = false;
  while (!lines_.empty() &&
         (!has_lines || page.size() + lines_.front().size() <= kOutputPageBytes)) {
    has_lines = true;
    bytes_ -= lines_.front().size();
    page += lines_.front();
    lines_.pop_front();
  }
  return page;
}

void OutputPages::send(std::string lines) {
  OutputPage page{.inquiry = inquiry_, .lines = std::move(lines), .is_ready = !lines_.empty()};
  page.is_last = is_ended_ && lines_.empty();
  is_known_ready_ = page.is_ready;
  if (page.is_last) is_open_ = false;
  send_(page);
}

}  // namespace ddprun
