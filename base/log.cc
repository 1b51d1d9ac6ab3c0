#include "base/log.h"

#include <spdlog/details/null_mutex.h>
#include <spdlog/logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include "base/terminal_text.h"

namespace ddprun {
namespace {

// LineFormatter: writes "ddprun: text" for information, and "ddprun: warning: text" or "ddprun:
// error: text" above it. The text becomes one line, whatever its source (terminal_line()); tabs
// and colours stay.
class LineFormatter final : public spdlog::formatter {
 public:
  explicit LineFormatter(std::string program) : program_(std::move(program)) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& line) override {
    append(line, program_);
    append(line, ": ");
    if (message.level == spdlog::level::warn) append(line, "warning: ");
    if (message.level >= spdlog::level::err) append(line, "error: ");
    append(line, terminal_line(std::string_view(message.payload.data(), message.payload.size())));
    append(line, "\n");
  }

  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<LineFormatter>(program_);
  }

 private:
  static void append(spdlog::memory_buf_t& line, std::string_view text) {
    line.append(text.data(), text.data() + text.size());
  }

  std::string program_;
};

LogLevel our_level(spdlog::level::level_enum level) {
  if (level >= spdlog::level::err) return LogLevel::kError;
  if (level == spdlog::level::warn) return LogLevel::kWarning;
  return level == spdlog::level::info ? LogLevel::kInfo : LogLevel::kDebug;
}

spdlog::level::level_enum level_of(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug: return spdlog::level::debug;
    case LogLevel::kInfo: return spdlog::level::info;
    case LogLevel::kWarning: return spdlog::level::warn;
    case LogLevel::kError: break;
  }
  return spdlog::level::err;
}

class GivenFormatter final : public spdlog::formatter {
 public:
  explicit GivenFormatter(LineFormat format) : format_(std::move(format)) {}

  void format(const spdlog::details::log_msg& message, spdlog::memory_buf_t& line) override {
    const std::string text = format_(
        our_level(message.level), std::string_view(message.payload.data(), message.payload.size()));
    line.append(text.data(), text.data() + text.size());
  }
  std::unique_ptr<spdlog::formatter> clone() const override {
    return std::make_unique<GivenFormatter>(format_);
  }

 private:
  LineFormat format_;
};

class FunctionSink final : public spdlog::sinks::base_sink<spdlog::details::null_mutex> {
 public:
  explicit FunctionSink(LineSink sink) : sink_(std::move(sink)) {}

 private:
  void sink_it_(const spdlog::details::log_msg& message) override {
    spdlog::memory_buf_t line;
    formatter_->format(message, line);
    sink_(std::string_view(line.data(), line.size()));
  }
  void flush_() override {}

  LineSink sink_;
};

}  // namespace

struct Logger::Impl {
  Impl(const std::string& program, LineSink sink)
      : logger(program, std::make_shared<FunctionSink>(std::move(sink))) {}

  // Does not use `text` as a format string, because other programs may have written parts of
  // it.
  void log(spdlog::level::level_enum level, std::string_view text) {
    logger.log(level, spdlog::string_view_t(text.data(), text.size()));
  }

  spdlog::logger logger;
};

Logger::Logger(const std::string& program, LineSink sink, LineFormat format)
    : impl_(std::make_unique<Impl>(program, std::move(sink))) {
  if (format) {
    impl_->logger.set_formatter(std::make_unique<GivenFormatter>(std::move(format)));
  } else {
    impl_->logger.set_formatter(std::make_unique<LineFormatter>(program));
  }
}

Logger::~Logger() = default;

void Logger::set_level(LogLevel lowest) { impl_->logger.set_level(level_of(lowest)); }

void Logger::debug(std::string_view text) { impl_->log(spdlog::level::debug, text); }
void Logger::info(std::string_view text) { impl_->log(spdlog::level::info, text); }
void Logger::warning(std::string_view text) { impl_->log(spdlog::level::warn, text); }
void Logger::error(std::string_view text) { impl_->log(spdlog::level::err, text); }

LineSink stderr_sink() {
  return [](std::string_view line) {
    // One write keeps the line whole. If stderr is closed or full, the error is ignored.
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), line.size());
  };
}

}  // namespace ddprun
