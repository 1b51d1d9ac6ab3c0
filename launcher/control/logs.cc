#include "launcher/control/logs.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <nlohmann/json.hpp>

#include "base/write_all.h"
#include "rendezvous/protocol/control_json.h"
#include "rendezvous/protocol/output_text.h"

namespace ddprun {
namespace {

using Json = nlohmann::json;

// Prints the lines that have arrived. Returns false if the output can no longer be written.
bool print_lines(ControlClient& client, LogPrinter& printer) {
  while (true) {
    const Result<std::optional<std::string>> line = client.line_now();
    if (!line || !*line) return true;
    if (!printer.take(**line)) return false;
  }
}

void wait_for(const std::vector<ControlClient>& clients) {
  std::vector<pollfd> fds;
  for (const ControlClient& client : clients) fds.push_back({client.descriptor(), POLLIN, 0});
  // No timeout: the user asked to follow the output until the job ends.
  while (::poll(fds.data(), fds.size(), -1) < 0 && errno == EINTR) {
  }
}

}  // namespace

bool LogPrinter::take(std::string_view json_line) {
  const Json json = Json::parse(json_line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return true;
  try {
    if (json.contains("stream")) {
      const Source source{json.at("rank").get<int>(), json.at("stream") == "stderr"};
      return lines(source, output_text(json));
    }
    if (json.contains("generation")) begin(json);
    if (json.contains("dropped_bytes")) {
      notice(json, json.at("dropped_bytes").dump() +
                       " bytes of output are missing here: they came faster than they were read");
    }
    if (json.contains("ended")) {
      notice(json,
             "the job's part on this host has ended with exit code " + json.at("exit_code").dump());
    }
  } catch (const Json::exception&) {
  }
  return true;
}

void LogPrinter::notice(const Json& json, const std::string& words) const {
  if (options_.json) {
    write_all(STDOUT_FILENO, text_of(json) + "\n");
  } else {
    write_all(STDERR_FILENO, "ddprun: " + words + "\n");
  }
}

bool LogPrinter::lines(const Source& source, std::string_view text) const {
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

void LogPrinter::add(const Source& source, std::string_view line, std::string& all) const {
  if (!options_.json) {
    if (names_ranks_) all += "[rank " + std::to_string(source.first) + "] ";
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

// Each node announces the same generation, at its own time. Only the first announcement counts.
void LogPrinter::begin(const Json& json) {
  const auto generation = json.at("generation").get<std::int64_t>();
  if (generation_ && generation <= *generation_) return;
  names_ranks_ = !options_.rank && json.value("world_size", 2) > 1;
  if (generation_) {
    notice({{"generation", generation}}, "generation " + std::to_string(generation) + " begins");
  }
  generation_ = generation;
}

int show_logs(std::vector<ControlClient> clients, const LogOptions& options) {
  LogPrinter printer(options);
  while (true) {
    for (ControlClient& client : clients) {
      if (!print_lines(client, printer)) return 0;
    }
    std::erase_if(clients, [](const ControlClient& one) { return one.is_at_end(); });
    if (clients.empty()) return 0;
    wait_for(clients);
  }
}

}  // namespace ddprun
