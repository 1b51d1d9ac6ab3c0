#include "examples/epoch_report.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace examples {
namespace {

constexpr auto kBetweenDraws = std::chrono::milliseconds(100);
constexpr std::size_t kLongestBar = 24, kShortestBar = 6;
constexpr std::size_t kPrefixColumns = 10;  // for "[rank 0] ", which ddprun writes before it

std::size_t columns_of_terminal() {
  winsize size{};
  const bool is_known = ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0;
  return std::max<std::size_t>(is_known ? size.ws_col : 80, 2 * kPrefixColumns);
}

template <class... Values>
std::string formatted(const char* format, Values... values) {
  char text[64];
  std::snprintf(text, sizeof text, format, values...);
  return text;
}

// Returns the time in the largest unit in which it has two digits.
std::string text_of(double seconds) {
  if (seconds < 100) return formatted("%.0f s", seconds);
  if (seconds < 6000) return formatted("%.0f min", seconds / 60);
  return formatted("%.0f h", seconds / 3600);
}

}  // namespace

std::string progress_line(const EpochProgress& progress, std::size_t columns) {
  const std::string head =
      progress.word + formatted(" %lld ", static_cast<long long>(progress.epoch));
  const std::string count = formatted("%lld/%lld", static_cast<long long>(progress.done),
                                      static_cast<long long>(progress.steps));
  std::string loss = formatted("  loss %.4f", progress.loss);
  std::string speed = formatted("  %.0f samples/s", progress.samples_per_second);
  std::string left = formatted("  %s left", text_of(progress.seconds_left).c_str());
  std::size_t used = head.size() + count.size();
  for (std::string* part : {&left, &loss, &speed}) {
    if (used + part->size() > columns) part->clear();
    used += part->size();
  }
  std::string bar;
  if (used + kShortestBar + 3 <= columns) {
    const std::size_t width = std::min(kLongestBar, columns - used - 3);
    const double share = static_cast<double>(progress.done) / static_cast<double>(progress.steps);
    const auto filled =
        static_cast<std::size_t>(static_cast<double>(width) * std::clamp(share, 0.0, 1.0));
    bar = '[' + std::string(filled, '=') + std::string(width - filled, ' ') + "] ";
  }
  return (head + bar + count + loss + speed + left).substr(0, columns);
}

EpochReport::EpochReport(const std::string& file, bool speaks, int workers, std::string word)
    : speaks_(speaks),
      has_terminal_(speaks && isatty(STDOUT_FILENO) == 1),
      workers_(workers),
      word_(std::move(word)) {
  if (!speaks || file.empty()) return;
  file_ = std::fopen(file.c_str(), "ae");
  if (!file_) throw std::runtime_error("cannot open " + file + ": " + std::strerror(errno));
}

EpochReport::~EpochReport() {
  clear_bar();
  if (file_) std::fclose(file_);
}

void EpochReport::begin_epoch(std::int64_t epoch, std::int64_t steps) {
  epoch_ = epoch;
  steps_ = steps;
  done_ = images_ = 0;
  start_ = Clock::now();
  drawn_ = {};
}

void EpochReport::step(double loss, std::int64_t images) {
  ++done_;
  images_ += images;
  if (has_terminal_ && (done_ == steps_ || Clock::now() - drawn_ >= kBetweenDraws)) draw(loss);
}

double EpochReport::seconds() const {
  return std::chrono::duration<double>(Clock::now() - start_).count();
}

double EpochReport::samples_per_second() const {
  return static_cast<double>(images_ * workers_) / seconds();
}

void EpochReport::draw(double loss) {
  drawn_ = Clock::now();
  const auto to_do = static_cast<double>(std::max<std::int64_t>(steps_ - done_, 0));
  const double left = seconds() / static_cast<double>(done_) * to_do;
  const std::string line = progress_line({.word = word_,
                                          .epoch = epoch_,
                                          .done = done_,
                                          .steps = steps_,
                                          .loss = loss,
                                          .samples_per_second = samples_per_second(),
                                          .seconds_left = left},
                                         columns_of_terminal() - kPrefixColumns);
  has_bar_ = true;
  std::printf("\r\033[K%s", line.c_str());
  std::fflush(stdout);
}

void EpochReport::clear_bar() {
  if (!std::exchange(has_bar_, false)) return;
  std::printf("\r\033[K");
  std::fflush(stdout);
}

void EpochReport::end_epoch(std::int64_t step, const nlohmann::ordered_json& metrics) {
  if (!speaks_) return;
  const double took = seconds(), rate = samples_per_second();
  clear_bar();
  std::printf("%s %2lld", word_.c_str(), static_cast<long long>(epoch_));
  for (const auto& [name, value] : metrics.items())
    std::printf("  %s %.4f", name.c_str(), value.get<double>());
  std::printf("  samples/s %.0f\n", rate);
  std::fflush(stdout);
  if (!file_) return;
  nlohmann::ordered_json line;
  line[word_] = epoch_;
  line["step"] = step;  // also if word_ is "step"
  line["seconds"] = took;
  line["samples_per_second"] = rate;
  line.update(metrics);
  if (std::fprintf(file_, "%s\n", line.dump().c_str()) < 0 || std::fflush(file_) != 0)
    throw std::runtime_error(std::string("cannot write the metrics: ") + std::strerror(errno));
}

}  // namespace examples
