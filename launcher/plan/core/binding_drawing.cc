#include "launcher/plan/core/binding_drawing.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "base/counted.h"
#include "launcher/options/core/table_text.h"

namespace ddprun {
namespace {

constexpr std::size_t kCoresInALine = 32;

std::string right_aligned(const std::string& text, std::size_t width) {
  return std::string(width - std::min(width, text.size()), ' ') + text;
}

// Formats numbers as CPUs are written: "0-1".
std::string numbers(const std::set<int>& what) { return to_text(CpuSet(what)); }

class Sketch {
 public:
  explicit Sketch(const BindingDrawing& drawing)
      : machine_(drawing.machine), placement_(drawing.placement), drawing_(drawing) {
    for (const ProcessorCore& core : machine_.cores) {
      nodes_[{core.package, core.numa_node}].push_back(&core);
      all_.insert(core.cpus.begin(), core.cpus.end());
    }
    is_bound_ =
        std::ranges::any_of(placement_.seats, [](const Seat& seat) { return !seat.cpus.empty(); });
    width_ = std::to_string(placement_.seats.size() - 1).size();
  }

  std::string text() {
    head();
    map();
    ranks();
    for (const std::string& remark : placement_.remarks) line("", remark);
    return std::move(text_);
  }

 private:
  void line(const std::string& indent, const std::string& words) {
    text_ += indent + words.substr(0, words.find_last_not_of(' ') + 1) + "\n";
  }

  void head() {
    std::set<int> packages;
    std::set<int> nodes;
    for (const auto& [place, cores] : nodes_) {
      packages.insert(place.first);
      nodes.insert(place.second);
    }
    line("", drawing_.host + ": " + counted(packages.size(), "package") + ", " +
                 counted(nodes.size(), "NUMA node") + ", " +
                 counted(machine_.cores.size(), "core") + ", " + counted(all_.size(), "CPU") +
                 ", " + counted(machine_.gpus.size(), "visible GPU") + "; usable: CPUs " +
                 to_text(common(all_, machine_.usable)));
    line("", placement_.policy + ", " + counted(placement_.seats.size(), "worker"));
  }

  // --- the machine

  void map() {
    int package = -1;
    for (const auto& [place, cores] : nodes_) {
      if (place.first != package) line("  ", "package " + std::to_string(place.first));
      package = place.first;
      CpuSet cpus;
      for (const ProcessorCore* core : cores) cpus.insert(core->cpus.begin(), core->cpus.end());
      line("    ", "NUMA node " + std::to_string(place.second) + "  CPUs " + to_text(cpus) +
                       gpus_near(cpus));
      for (std::size_t first = 0; first < cores.size(); first += kCoresInALine) {
        line("      ", places(cores, first));
      }
    }
    line("  ", is_bound_ ? "the local rank that runs on each core; * several, . none, x not usable"
                         : "+ every worker may use it, x not usable");
  }

  std::string gpus_near(const CpuSet& cpus) const {
    std::string text;
    for (const GpuPlace& gpu : machine_.gpus) {
      if (!common(gpu.near, cpus).empty()) text += "  GPU " + gpu.name;
    }
    return text;
  }

  // Returns the marks of one line of cores, with a bar where another last-level cache begins.
  std::string places(const std::vector<const ProcessorCore*>& cores, std::size_t first) const {
    std::string text;
    for (std::size_t i = first; i < std::min(cores.size(), first + kCoresInALine); ++i) {
      if (i > first) text += cores[i]->cache == cores[i - 1]->cache ? " " : " | ";
      text += right_aligned(mark_of(*cores[i]), width_);
    }
    return text;
  }

  std::string mark_of(const ProcessorCore& core) const {
    if (common(core.cpus, machine_.usable).empty()) return "x";
    if (!is_bound_) return "+";
    std::string mark = ".";
    for (std::size_t i = 0; i < placement_.seats.size(); ++i) {
      if (common(core.cpus, placement_.seats[i].cpus).empty()) continue;
      if (mark != ".") return "*";
      mark = std::to_string(i);
    }
    return mark;
  }

  // --- the workers

  void ranks() {
    std::vector<std::vector<std::string>> rows;
    for (std::size_t i = 0; i < placement_.seats.size(); ++i) rows.push_back(row_of(i));
    text_ += table_text(rows);
  }

  std::vector<std::string> row_of(std::size_t rank) const {
    const Seat& seat = placement_.seats[rank];
    const CpuSet& cpus = seat.cpus.empty() ? machine_.usable : seat.cpus;
    std::set<int> packages;
    std::set<int> nodes;
    for (const auto& [place, cores] : nodes_) {
      for (const ProcessorCore* core : cores) {
        if (common(core->cpus, cpus).empty()) continue;
        packages.insert(place.first);
        nodes.insert(place.second);
      }
    }
    const std::string threads =
        drawing_.threads.empty() ? std::to_string(seat.threads) : drawing_.threads;
    return {"local rank " + right_aligned(std::to_string(rank), width_) + ":",
            "CPUs " + to_text(common(all_, cpus)),
            counted(seat.cores, "core"),
            "package " + numbers(packages),
            "NUMA node " + numbers(nodes),
            gpu_of(seat),
            "OMP_NUM_THREADS=" + threads,
            seat.why};
  }

  std::string gpu_of(const Seat& seat) const {
    if (!seat.gpu) return "";
    const GpuPlace& gpu = machine_.gpus[static_cast<std::size_t>(*seat.gpu)];
    return "GPU " + gpu.name + (gpu.bus_id.empty() ? "" : " (" + gpu.bus_id + ")");
  }

  const Machine& machine_;
  const Placement& placement_;
  const BindingDrawing& drawing_;
  // By package and NUMA node.
  std::map<std::pair<int, int>, std::vector<const ProcessorCore*>> nodes_;
  CpuSet all_;
  bool is_bound_ = false;
  std::size_t width_ = 1;  // of a local rank
  std::string text_;
};

}  // namespace

std::string draw(const BindingDrawing& drawing) { return Sketch(drawing).text(); }

}  // namespace ddprun
