#include "worker_lib/bench/core/report.h"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "base/concat.h"

namespace ddprun {
namespace {

constexpr double kLeastShare = 0.75;
constexpr double kMostLatency = 2;
constexpr double kLatencyNoise = 20e-6;  // s

// An even number of values has two in the middle.
enum class Middle { kLower, kUpper };

double median(std::vector<double> values, Middle which) {
  if (values.empty()) return 0;
  const std::size_t at = (values.size() - (which == Middle::kLower ? 1 : 0)) / 2;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(at);
  std::ranges::nth_element(values, middle);
  return *middle;
}

// Returns the median of a node's values in a matrix, in both directions. better: which of two
// values is the better one. With three nodes, half of the values of a good node may be those of
// its link to a bad one.
double of_node(const std::vector<std::vector<double>>& matrix, std::size_t node, Middle better) {
  std::vector<double> values;
  for (std::size_t other = 0; other < matrix.size(); ++other) {
    if (other == node) continue;
    values.push_back(matrix[node][other]);
    values.push_back(matrix[other][node]);
  }
  return median(std::move(values), better);
}

double link_of(const BenchReport& report, std::size_t node) {
  return of_node(report.link_gbs, node, Middle::kUpper);
}
double latency_of(const BenchReport& report, std::size_t node) {
  return of_node(report.latency_s, node, Middle::kLower);
}

// worse: which of two values is the worse one.
double median_of_others(const std::vector<double>& of_nodes, std::size_t node, Middle worse) {
  std::vector<double> others = of_nodes;
  others.erase(others.begin() + static_cast<std::ptrdiff_t>(node));
  return median(std::move(others), worse);
}

// Returns "0.012", "1.23", "12.3" or "123".
std::string digits(double value) {
  char text[32];
  const int places = value >= 100 ? 0 : value >= 10 ? 1 : value >= 1 ? 2 : 3;
  std::snprintf(text, sizeof text, "%.*f", places, value);
  return text;
}

std::string micros(double seconds) { return digits(seconds * 1e6); }

std::string size_text(std::uint64_t bytes) {
  if (bytes >= 1 << 20) return concat(bytes >> 20, " MiB");
  return bytes >= 1 << 10 ? concat(bytes >> 10, " KiB") : concat(bytes, " B");
}

std::string right(const std::string& text, std::size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

std::string name_of(const BenchReport& report, std::size_t node) {
  return concat("node ", node, " (", report.nodes[node].host, ")");
}

// Adds a sentence for each way in which the GPUs of a node are odd.
void add_odd_gpus(const BenchReport& report, std::size_t node, std::vector<std::string>& result) {
  const GpuSpeeds& own = report.nodes[node].gpu;
  const std::string name = name_of(report, node);
  if (!own.fault.empty()) result.push_back(concat(name, ": ", own.fault));
  std::vector<double> counts;
  for (const BenchNode& one : report.nodes) counts.push_back(one.gpu.gpus);
  const auto usual_count = static_cast<int>(median_of_others(counts, node, Middle::kLower));
  if (own.gpus < usual_count)
    result.push_back(concat(name, ": it has ", own.gpus, " GPUs, the others ", usual_count));
  const auto compare = [&](double GpuSpeeds::*speed, const char* doing, const char* unit) {
    std::vector<double> others;
    for (std::size_t other = 0; other < report.nodes.size(); ++other)
      if (const double value = report.nodes[other].gpu.*speed; other != node && value > 0)
        others.push_back(value);
    const double usual = median(std::move(others), Middle::kLower);
    if (own.*speed > 0 && own.*speed < kLeastShare * usual)
      result.push_back(concat(name, ": its slowest GPU ", doing, " ", digits(own.*speed / 1e9),
                              unit, ", that of the others ", digits(usual / 1e9), unit));
  };
  compare(&GpuSpeeds::bytes_per_s, "copies", " GB/s");
  compare(&GpuSpeeds::multiplies_per_s, "multiplies", " G/s");
}

std::string speed_of_gpu(double each_s, const char* unit) {
  return each_s > 0 ? digits(each_s / 1e9) + unit : "-";
}

// Draws one digit for each link: its tenths of the fastest one.
std::string picture(const BenchReport& report) {
  double most = 0;
  for (const auto& row : report.link_gbs)
    for (const double gbs : row) most = std::max(most, gbs);
  std::string text;
  for (std::size_t from = 0; from < report.nodes.size(); ++from) {
    text += right(concat(from), 6) + "  ";
    for (std::size_t to = 0; to < report.nodes.size(); ++to) {
      const int tenths = most > 0 ? static_cast<int>(report.link_gbs[from][to] / most * 10) : 0;
      text += from == to ? '.' : static_cast<char>('0' + std::min(tenths, 9));
    }
    text += '\n';
  }
  return text;
}

}  // namespace

double median(std::vector<double> values) { return median(std::move(values), Middle::kUpper); }

std::vector<std::string> odd_nodes(const BenchReport& report) {
  std::vector<double> memory, links, latencies;
  for (std::size_t node = 0; node < report.nodes.size(); ++node) {
    memory.push_back(report.nodes[node].memory_gbs);
    links.push_back(link_of(report, node));
    latencies.push_back(latency_of(report, node));
  }
  std::vector<std::string> result;
  for (std::size_t node = 0; node < report.nodes.size(); ++node) {
    const double usual = median_of_others(memory, node, Middle::kLower);
    if (memory[node] < kLeastShare * usual)
      result.push_back(concat(name_of(report, node), ": its memory copies ", digits(memory[node]),
                              " GB/s, that of the others ", digits(usual), " GB/s"));
    add_odd_gpus(report, node, result);
    if (report.nodes.size() < 3) continue;
    const double usual_link = median_of_others(links, node, Middle::kLower);
    if (links[node] < kLeastShare * usual_link)
      result.push_back(concat(name_of(report, node), ": its links carry ", digits(links[node]),
                              " GB/s, those of the others ", digits(usual_link), " GB/s"));
    const double usual_latency = median_of_others(latencies, node, Middle::kUpper);
    if (latencies[node] > kMostLatency * usual_latency &&
        latencies[node] > usual_latency + kLatencyNoise)
      result.push_back(concat(name_of(report, node), ": its messages take ",
                              micros(latencies[node]), " us, those of the others ",
                              micros(usual_latency), " us"));
  }
  return result;
}

std::string to_text(const BenchReport& report) {
  const bool has_links = report.nodes.size() > 1;
  const bool has_gpus =
      std::ranges::any_of(report.nodes, [](const BenchNode& node) { return node.gpu.gpus > 0; });
  std::string text = concat("  node  memory copy", has_links ? "     latency       links" : "",
                            has_gpus ? "  GPUs     GPU copy  GPU multiply" : "", "  host\n");
  for (std::size_t node = 0; node < report.nodes.size(); ++node) {
    text += right(concat(node), 6) + right(digits(report.nodes[node].memory_gbs) + " GB/s", 13);
    if (has_links)
      text += right(micros(latency_of(report, node)) + " us", 12) +
              right(digits(link_of(report, node)) + " GB/s", 12);
    if (has_gpus) {
      const GpuSpeeds& gpu = report.nodes[node].gpu;
      text += right(concat(gpu.gpus), 6) + right(speed_of_gpu(gpu.bytes_per_s, " GB/s"), 13) +
              right(speed_of_gpu(gpu.multiplies_per_s, " G/s"), 14);
    }
    text += "  " + report.nodes[node].host + "\n";
  }
  if (has_links)
    text += "\nLinks, in tenths of the fastest one (row: from, column: to):\n" + picture(report);
  if (report.ranks > 1) {
    text += concat("\nall_reduce of ", report.ranks, " ranks:\n");
    for (const BenchReduce& one : report.all_reduces)
      text += right(size_text(one.bytes), 10) + right(micros(one.seconds) + " us", 14) +
              right(digits(static_cast<double>(one.bytes) / one.seconds / 1e9) + " GB/s", 13) +
              "\n";
  }
  const std::vector<std::string> odd = odd_nodes(report);
  text += odd.empty() ? "\nNo node is odd.\n" : "\nOdd:\n";
  for (const std::string& one : odd) text += "  " + one + "\n";
  return text;
}

}  // namespace ddprun
