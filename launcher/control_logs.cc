#include "launcher/control_logs.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/write_all.h"
#include "launcher/core/recent_output.h"
#include "rendezvous/control_json.h"

namespace ddprun {
namespace {

using Json = nlohmann::json;

// A stream of a rank.
using Source = std::pair<int, bool>;  // rank, is stderr

std::string from_hex(const std::string& hex) {
  std::string bytes;
  const auto digit = [](char c) { return c <= '9' ? c - '0' : c - 'a' + 10; };
  for (std::size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes += static_cast<char>(digit(hex[i]) * 16 + digit(hex[i + 1]));
  }
  return bytes;
}

class Printer {
 public:
  explicit Printer(const LogOptions& options) : options_(options) {}

  // False: nobody reads any more.
  bool lines(const Source& source, std::string_view text) {
    std::string all;
    while (!text.empty()) {
      const std::size_t end = std::min(text.find_first_of("\n\r"), text.size() - 1);
      std::size_t length = end + 1;
      if (text[end] == '\r' && length < text.size() && text[length] == '\n') ++length;
      add(source, text.substr(0, length), all);
      text.remove_prefix(length);
    }
    return write_all(source.second && !options_.json ? STDERR_FILENO : STDOUT_FILENO, all);
  }

  void notice(const Json& json, const std::string& words) const {
    if (options_.json) {
      write_all(STDOUT_FILENO, text_of(json) + "\n");
    } else {
      write_all(STDERR_FILENO, "ddprun: " + words + "\n");
    }
  }

 private:
  void add(const Source& source, std::string_view line, std::string& all) const {
    if (!options_.json) {
      if (options_.names_ranks) all += "[rank " + std::to_string(source.first) + "] ";
      all += line;
      if (line.back() != '\n' && line.back() != '\r') all += '\n';
      return;
    }
    while (!line.empty() && (line.back() == '\n' || line.back() == '\r')) line.remove_suffix(1);
    all += text_of({{"rank", source.first},
                    {"stream", source.second ? "stderr" : "stdout"},
                    {"line", line}}) +
           "\n";
  }

  LogOptions options_;
};

// A file that a worker writes by itself.
struct File {
  Source source;
  std::string path;
  UniqueFd fd;
  WholeLines lines;

  // What is new in it; false: nobody reads any more.
  bool show(Printer& printer) {
    std::array<char, 64 * 1024> buffer;
    ssize_t size = 0;
    while ((size = ::read(fd.get(), buffer.data(), buffer.size())) > 0) {
      const std::string whole =
          lines.take(std::string_view(buffer.data(), static_cast<std::size_t>(size)));
      if (!whole.empty() && !printer.lines(source, whole)) return false;
    }
    return true;
  }
  bool show_rest(Printer& printer) {
    const std::string rest = lines.flush();
    return rest.empty() || printer.lines(source, rest);
  }
};

// Stands before the last lines of the file.
void go_to_last_lines(int fd, int count) {
  off_t at = ::lseek(fd, 0, SEEK_END);
  std::array<char, 64 * 1024> buffer;
  bool is_last_byte = true;
  while (at > 0 && count > 0) {
    const auto size = static_cast<std::size_t>(std::min<off_t>(at, buffer.size()));
    at -= static_cast<off_t>(size);
    if (::pread(fd, buffer.data(), size, at) != static_cast<ssize_t>(size)) break;
    for (std::size_t i = size; i-- > 0;) {
      const bool is_last = std::exchange(is_last_byte, false);
      if (buffer[i] != '\n' || is_last || --count > 0) continue;
      ::lseek(fd, at + static_cast<off_t>(i) + 1, SEEK_SET);
      return;
    }
  }
  ::lseek(fd, 0, count > 0 ? SEEK_SET : SEEK_END);
}

class Reader {
 public:
  Reader(std::vector<ControlClient> clients, const LogOptions& options)
      : clients_(std::move(clients)), options_(options), printer_(options) {
    changes_.reset(inotify_init1(IN_NONBLOCK | IN_CLOEXEC));
  }

  int run() {
    while (true) {
      for (ControlClient& client : clients_) {
        if (!take_lines(client)) return 0;
      }
      for (auto& [watch, file] : files_) {
        if (!file.show(printer_)) return 0;
      }
      std::erase_if(clients_, [](const ControlClient& one) { return one.is_at_end(); });
      if (clients_.empty()) break;
      wait();
    }
    for (auto& [watch, file] : files_) {
      if (!file.show(printer_) || !file.show_rest(printer_)) return 0;
    }
    return 0;
  }

 private:
  bool take_lines(ControlClient& client) {
    while (true) {
      const Result<std::optional<std::string>> line = client.line_now();
      if (!line || !*line) return true;
      if (!take(Json::parse(**line, nullptr, /*allow_exceptions=*/false))) return false;
    }
  }

  // What is of another version is passed over.
  bool take(const Json& json) {
    if (!json.is_object()) return true;
    try {
      if (json.contains("stream")) {
        const Source source{json.at("rank").get<int>(), json.at("stream") == "stderr"};
        return printer_.lines(source, json.contains("hex")
                                          ? from_hex(json.at("hex").get<std::string>())
                                          : json.at("text").get<std::string>());
      }
      if (json.contains("generation")) return begin(json);
      if (json.contains("dropped_bytes")) {
        printer_.notice(json, json.at("dropped_bytes").dump() +
                                  " bytes of output are missing here: they came faster than they "
                                  "were read");
      }
      if (json.contains("ended")) {
        printer_.notice(json, "the job's part on this host has ended with exit code " +
                                  json.at("exit_code").dump());
      }
    } catch (const Json::exception&) {
    }
    return true;
  }

  // Of a generation: where its workers write by themselves.
  bool begin(const Json& json) {
    const std::int64_t generation = json.at("generation").get<std::int64_t>();
    if (generation_ && *generation_ != generation) {
      for (auto& [watch, file] : files_) {
        if (!file.show(printer_) || !file.show_rest(printer_)) return false;
      }
      files_.clear();
      printer_.notice({{"generation", generation}},
                      "generation " + std::to_string(generation) + " begins");
    }
    const bool is_first = !std::exchange(generation_, generation);
    for (const Json& one : json.at("files")) {
      const Source source{one.at("rank").get<int>(), one.at("stream") == "stderr"};
      if (options_.rank && options_.rank->value != source.first) continue;
      open_file(source, one.at("path").get<std::string>(), is_first);
    }
    return true;
  }

  void open_file(const Source& source, const std::string& path, bool has_past) {
    UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd.valid()) {
      return printer_.notice({{"unreadable", path}}, system_error("read " + path, errno).message());
    }
    if (has_past) go_to_last_lines(fd.get(), options_.lines);
    int watch = -1 - static_cast<int>(files_.size());  // not watched
    if (options_.follow) {
      const int number = inotify_add_watch(changes_.get(), path.c_str(), IN_MODIFY);
      if (number >= 0) watch = number;
    }
    files_.emplace(watch, File{source, path, std::move(fd), {}});
  }

  void wait() {
    std::vector<pollfd> fds{{changes_.get(), POLLIN, 0}};
    for (const ControlClient& client : clients_) fds.push_back({client.descriptor(), POLLIN, 0});
    // Until the job has ended, however long that takes: that is what was asked for.
    while (::poll(fds.data(), fds.size(), -1) < 0 && errno == EINTR) {
    }
    std::array<char, 4096> ignored;
    while (::read(changes_.get(), ignored.data(), ignored.size()) > 0) {
    }
  }

  std::vector<ControlClient> clients_;
  LogOptions options_;
  Printer printer_;
  UniqueFd changes_;
  std::map<int, File> files_;  // by watch
  std::optional<std::int64_t> generation_;
};

}  // namespace

int show_logs(std::vector<ControlClient> clients, const LogOptions& options) {
  return Reader(std::move(clients), options).run();
}

}  // namespace ddprun
