#include "examples/epoch_report.h"

#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>

namespace examples {
namespace {

constexpr auto kBetweenDraws = std::chrono::milliseconds(100);
constexpr std::int64_t kBarWidth = 24;

}  // namespace

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
  const auto filled = static_cast<std::size_t>(kBarWidth * done_ / steps_);
  const std::string bar = std::string(filled, '=') + std::string(kBarWidth - filled, ' ');
  const double left = seconds() / static_cast<double>(done_) * static_cast<double>(steps_ - done_);
  std::printf("\r\033[K%s %lld [%s] %lld/%lld  loss %.4f  %.0f samples/s  %.0f s left",
              word_.c_str(), static_cast<long long>(epoch_), bar.c_str(),
              static_cast<long long>(done_), static_cast<long long>(steps_), loss,
              samples_per_second(), left);
  std::fflush(stdout);
}

void EpochReport::clear_bar() {
  if (!has_terminal_) return;
  std::printf("\r\033[K");
  std::fflush(stdout);
}

void EpochReport::end_epoch(std::int64_t step, const nlohmann::json& metrics) {
  if (!speaks_) return;
  const double took = seconds(), rate = samples_per_second();
  clear_bar();
  std::printf("%s %2lld", word_.c_str(), static_cast<long long>(epoch_));
  for (const auto& [name, value] : metrics.items())
    std::printf("  %s %.4f", name.c_str(), value.get<double>());
  std::printf("  samples/s %.0f\n", rate);
  std::fflush(stdout);
  if (!file_) return;
  nlohmann::json line = metrics;
  line.update({{word_, epoch_}, {"step", step}, {"seconds", took}, {"samples_per_second", rate}});
  if (std::fprintf(file_, "%s\n", line.dump().c_str()) < 0 || std::fflush(file_) != 0)
    throw std::runtime_error(std::string("cannot write the metrics: ") + std::strerror(errno));
}

}  // namespace examples
