#include "launcher/machine/core/placement.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>
#include <utility>

#include "base/counted.h"

namespace ddprun {
namespace {

using Cores = std::vector<ProcessorCore>;

// Home: a NUMA node with its usable cores, and the workers whose home it is, in ascending
// order.
struct Home {
  int package = 0;  // of its first core: virtual machines often have a package for each CPU
  int numa_node = 0;
  Cores cores;
  std::vector<std::size_t> workers;
};

std::vector<Home> homes_of(const Cores& cores) {
  std::map<int, Home> by_node;
  for (const ProcessorCore& core : cores) {
    Home& home = by_node[core.numa_node];
    if (home.cores.empty()) home.package = core.package;
    home.numa_node = core.numa_node;
    home.cores.push_back(core);
  }
  std::vector<Home> homes;
  for (auto& [node, home] : by_node) homes.push_back(std::move(home));
  std::ranges::stable_sort(homes, {}, &Home::package);
  return homes;
}

// Returns the home in `among` that has the most cores for each worker once it has one more. Of
// equal homes, the one whose package has the fewest workers is taken, then the first.
std::size_t roomiest(const std::vector<Home>& homes, const std::vector<std::size_t>& among) {
  const auto workers_of_package = [&](int package) {
    std::size_t count = 0;
    for (const Home& home : homes) count += home.package == package ? home.workers.size() : 0;
    return count;
  };
  std::size_t best = among.front();
  for (const std::size_t one : among) {
    const std::size_t here = homes[one].cores.size() * (homes[best].workers.size() + 1);
    const std::size_t there = homes[best].cores.size() * (homes[one].workers.size() + 1);
    if (here > there || (here == there && workers_of_package(homes[one].package) <
                                              workers_of_package(homes[best].package))) {
      best = one;
    }
  }
  return best;
}

// Returns part number `part` of `parts` equal parts. If the division leaves a remainder, the
// first parts have one core more.
Cores part_of(const Cores& cores, std::size_t part, std::size_t parts) {
  const std::size_t size = cores.size() / parts;
  const std::size_t larger = cores.size() % parts;
  const auto begin = static_cast<std::ptrdiff_t>(part * size + std::min(part, larger));
  const auto end = begin + static_cast<std::ptrdiff_t>(size + (part < larger ? 1 : 0));
  return {cores.begin() + begin, cores.begin() + end};
}

class Placing {
 public:
  Placing(const Machine& machine, const PlacementRequest& request)
      : machine_(machine),
        request_(request),
        cores_(usable_cores(machine)),
        homes_(homes_of(cores_)),
        seats_(static_cast<std::size_t>(request.workers)) {}

  Result<Placement> run() {
    if (cores_.empty()) {
      return invalid_argument("no CPU of this machine is usable: none of CPUs " +
                              to_text(machine_.usable) + " is known");
    }
    policy_ = chosen_policy();
    if (policy_ == BindPolicy::kNone) {
      leave_unbound();
    } else if (policy_ == BindPolicy::kCore) {
      if (seats_.size() > cores_.size()) return too_few_cores();
      divide_all();
    } else {
      if (policy_ == BindPolicy::kGpu && request_.policy == BindPolicy::kGpu &&
          machine_.gpus.size() < seats_.size()) {
        return too_few_gpus();
      }
      find_homes();
      for (const Home& home : homes_) take_seats(home);
      remark_on_sharing();
    }
    for (std::size_t i = 0; i < std::min(seats_.size(), machine_.gpus.size()); ++i) look_at_gpu(i);
    Placement placement;
    placement.policy = request_.asked;
    if (policy_ != request_.policy) {
      placement.policy += " (" + std::string(enum_name(kBindWords, policy_)) + ")";
    }
    placement.seats = std::move(seats_);
    placement.remarks = std::move(remarks_);
    return placement;
  }

 private:
  BindPolicy chosen_policy() const {
    if (request_.policy != BindPolicy::kAuto) return request_.policy;
    if (!machine_.gpus.empty()) return BindPolicy::kGpu;
    return seats_.size() < homes_.size() ? BindPolicy::kCore : BindPolicy::kNuma;
  }

  Error too_few_cores() const {
    return invalid_argument(counted(cores_.size(), "usable core") + " for " +
                            counted(seats_.size(), "worker") + ": start at most " +
                            std::to_string(cores_.size()) +
                            ", or give --bind auto, which lets them share");
  }
  Error too_few_gpus() const {
    if (machine_.gpus.empty()) {
      return invalid_argument("no GPU is visible here: give --bind numa, core or auto");
    }
    return invalid_argument(counted(machine_.gpus.size(), "visible GPU") + " for " +
                            counted(seats_.size(), "worker") + ": start at most " +
                            std::to_string(machine_.gpus.size()) + ", or give --bind auto");
  }

  void seat(std::size_t worker, const Cores& cores, std::size_t shared_by, std::string why) {
    Seat& seat = seats_[worker];
    for (const ProcessorCore& core : cores) seat.cpus.insert(core.cpus.begin(), core.cpus.end());
    seat.cores = static_cast<int>(cores.size());
    seat.threads = threads_of_each(seat.cores, static_cast<int>(shared_by));
    seat.why = std::move(why);
  }

  void leave_unbound() {
    for (std::size_t i = 0; i < seats_.size(); ++i) {
      seat(i, cores_, seats_.size(), "not bound");
      seats_[i].cpus.clear();
    }
  }

  void divide_all() {
    for (std::size_t i = 0; i < seats_.size(); ++i) {
      seat(i, part_of(cores_, i, seats_.size()), 1, "its part of all cores");
    }
  }

  // --- homes

  // Returns the homes that the GPU is next to.
  std::vector<std::size_t> next_to(const GpuPlace& gpu) const {
    std::vector<std::size_t> near;
    for (std::size_t i = 0; i < homes_.size(); ++i) {
      const bool is_near = std::ranges::any_of(homes_[i].cores, [&](const ProcessorCore& core) {
        return !common(core.cpus, gpu.near).empty();
      });
      if (is_near) near.push_back(i);
    }
    return near;
  }

  bool looks_at_gpus() const { return policy_ != BindPolicy::kNuma; }

  // Assigns homes. Workers whose GPU leaves no choice come first, then those with several
  // possible homes. The others follow, in the order of their ranks, in the homes with the most
  // room.
  void find_homes() {
    std::vector<std::size_t> without_gpu;
    std::vector<std::pair<std::size_t, std::vector<std::size_t>>> with_choice;
    for (std::size_t i = 0; i < seats_.size(); ++i) {
      if (!looks_at_gpus() || i >= machine_.gpus.size()) {
        without_gpu.push_back(i);
        continue;
      }
      std::vector<std::size_t> near = next_to(machine_.gpus[i]);
      if (near.empty()) {
        remark_on_far(machine_.gpus[i]);
        without_gpu.push_back(i);
      } else if (near.size() == 1) {
        homes_[near.front()].workers.push_back(i);
      } else {
        with_choice.emplace_back(i, std::move(near));
      }
    }
    for (const auto& [worker, near] : with_choice) {
      homes_[roomiest(homes_, near)].workers.push_back(worker);
    }
    give_homes_to(without_gpu);
    for (Home& home : homes_) std::ranges::sort(home.workers);
  }

  void give_homes_to(const std::vector<std::size_t>& workers) {
    std::vector<std::size_t> all(homes_.size());
    std::iota(all.begin(), all.end(), 0);
    std::vector<std::size_t> chosen;
    for (const std::size_t worker : workers) {
      const std::size_t home = roomiest(homes_, all);
      homes_[home].workers.push_back(worker);  // so that roomiest() counts it
      chosen.push_back(home);
    }
    // Workers with neighbouring ranks get neighbouring places.
    std::ranges::sort(chosen);
    for (Home& home : homes_) {
      std::erase_if(home.workers,
                    [&](std::size_t one) { return std::ranges::count(workers, one) > 0; });
    }
    for (std::size_t i = 0; i < workers.size(); ++i) {
      homes_[chosen[i]].workers.push_back(workers[i]);
    }
  }

  void remark_on_far(const GpuPlace& gpu) {
    const std::string where = gpu.near.empty()
                                  ? "its nearest CPUs are not known"
                                  : "none of its nearest CPUs " + to_text(gpu.near) + " is usable";
    remarks_.push_back(request_.asked + ": GPU " + gpu.name + ": " + where +
                       "; its worker is placed as one without a GPU");
  }

  // --- seats

  void take_seats(const Home& home) {
    if (home.workers.empty()) return;
    const std::string node = "NUMA node " + std::to_string(home.numa_node);
    switch (policy_) {
      case BindPolicy::kNode: return share(home.workers, home.cores, home.workers.size(), node);
      case BindPolicy::kSocket: return share_package(home);
      case BindPolicy::kCoreComplex: return take_caches(home, node);
      default: break;
    }
    if (home.workers.size() > home.cores.size()) {
      crowded_ = true;
      return share(home.workers, home.cores, home.workers.size(), node);
    }
    for (std::size_t i = 0; i < home.workers.size(); ++i) {
      const std::string whose = home.workers.size() == 1 ? "all of " : "its part of ";
      seat(home.workers[i], part_of(home.cores, i, home.workers.size()), 1, whose + node);
    }
  }

  void share(const std::vector<std::size_t>& workers, const Cores& cores, std::size_t sharers,
             const std::string& what) {
    std::string why = "all of " + what;
    if (sharers > 1) why += ", shared by " + std::to_string(sharers);
    for (const std::size_t worker : workers) {
      seat(worker, cores, sharers, why);
    }
  }

  void share_package(const Home& home) {
    Cores cores;
    std::size_t sharers = 0;
    for (const Home& other : homes_) {
      if (other.package != home.package) continue;
      cores.insert(cores.end(), other.cores.begin(), other.cores.end());
      sharers += other.workers.size();
    }
    share(home.workers, cores, sharers, "package " + std::to_string(home.package));
  }

  // Gives each worker one cache, the cache with the most cores first. If there are more workers
  // than caches, it continues with the first cache again.
  void take_caches(const Home& home, const std::string& node) {
    std::map<int, Cores> by_cache;
    for (const ProcessorCore& core : home.cores) by_cache[core.cache].push_back(core);
    std::vector<Cores> caches;
    for (auto& [cache, cores] : by_cache) caches.push_back(std::move(cores));
    std::ranges::stable_sort(caches,
                             [](const Cores& a, const Cores& b) { return a.size() > b.size(); });
    for (std::size_t i = 0; i < caches.size(); ++i) {
      std::vector<std::size_t> workers;
      for (std::size_t j = i; j < home.workers.size(); j += caches.size()) {
        workers.push_back(home.workers[j]);
      }
      share(workers, caches[i], workers.size(), "a last-level cache of " + node);
    }
  }

  void look_at_gpu(std::size_t worker) {
    Seat& seat = seats_[worker];
    seat.gpu = static_cast<int>(worker);
    const CpuSet& near = machine_.gpus[worker].near;
    if (seat.cpus.empty() || near.empty()) return;
    seat.why += common(near, seat.cpus).empty() ? ", far from its GPU" : ", next to its GPU";
  }

  void remark_on_sharing() {
    if (!crowded_) return;
    remarks_.push_back(request_.asked + ": " + counted(cores_.size(), "usable core") + " for " +
                       counted(seats_.size(), "worker") +
                       ": workers share a NUMA node that has fewer cores than workers");
  }

  const Machine& machine_;
  const PlacementRequest& request_;
  BindPolicy policy_ = BindPolicy::kNone;
  const Cores cores_;
  std::vector<Home> homes_;
  std::vector<Seat> seats_;
  std::vector<std::string> remarks_;
  bool crowded_ = false;  // workers share cores, although each should have its own
};

}  // namespace

std::vector<ProcessorCore> usable_cores(const Machine& machine) {
  Cores cores;
  for (ProcessorCore core : machine.cores) {
    core.cpus = common(core.cpus, machine.usable);
    if (!core.cpus.empty()) cores.push_back(std::move(core));
  }
  std::ranges::stable_sort(cores, [](const auto& a, const auto& b) {
    return std::tie(a.package, a.numa_node, a.cache) < std::tie(b.package, b.numa_node, b.cache);
  });
  return cores;
}

Result<Placement> place_workers(const Machine& machine, const PlacementRequest& request) {
  return Placing(machine, request).run();
}

std::string describe(const Placement& placement) {
  // The most workers that the line names. --show-binding shows all of them.
  constexpr std::size_t kMostNamed = 16;
  std::string text = placement.policy + ":";
  const std::size_t named = std::min(placement.seats.size(), kMostNamed);
  for (std::size_t i = 0; i < named; ++i) {
    text += (i == 0 ? " local rank " : "; ") + std::to_string(i) + " on CPUs " +
            to_text(placement.seats[i].cpus);
  }
  if (named < placement.seats.size()) {
    text += "; and " + std::to_string(placement.seats.size() - named) + " more";
  }
  return text;
}

}  // namespace ddprun
