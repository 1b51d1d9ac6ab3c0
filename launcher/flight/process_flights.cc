#include "launcher/flight/process_flights.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <system_error>
#include <utility>

#include "base/clock.h"
#include "base/process_stat.h"
#include "base/small_file.h"
#include "base/unique_fd.h"
#include "base/worker_page_file.h"
#include "rendezvous/net/tcp_address.h"

namespace ddprun {
namespace {

namespace fs = std::filesystem;

using FileNumber = std::pair<dev_t, ino_t>;

std::string name_of(pid_t process) { return "process " + std::to_string(process); }

struct OpenPage {
  FileNumber number;
  MappedPages page;
};

// Opens a page. Returns nullopt if it is not a page of this version, or is closed by now.
std::optional<OpenPage> open_page(const fs::path& path) {
  const UniqueFd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  struct stat found {};
  if (!file.valid() || fstat(file.get(), &found) != 0) return std::nullopt;
  auto page = MappedPages::map({.file = file.get()}, MappedPages::Access::kRead);
  if (!page) return std::nullopt;
  return OpenPage{{found.st_dev, found.st_ino}, std::move(*page)};
}

RankFlight flight_in(const WorkerPage& page, pid_t process) {
  const auto number = [](const std::atomic<std::uint32_t>& field) {
    return static_cast<int>(field.load(std::memory_order_relaxed));
  };
  RankFlight flight{.rank = Rank(number(page.rank)),
                    .local_rank = LocalRank(number(page.local_rank)),
                    .host = host_name(),
                    .pid = process,
                    .lives = true,
                    .state = "running"};
  complete_flight(&page, kFlightRecords, process, flight);
  return flight;
}

// Returns why the process has no record.
std::string why_no_record(pid_t process, const fs::path& open_files) {
  if (!process_stat(process)) return "there is no " + name_of(process);
  if (access(open_files.c_str(), R_OK | X_OK) != 0) {
    return "cannot look into " + name_of(process) + ": " + errno_text(errno);
  }
  return name_of(process) +
         " has no flight record of its own: it is not a rank of this ddprun's library, or ddprun "
         "started it";
}

}  // namespace

Result<ProcessFlights> read_process_flights(const std::vector<pid_t>& processes) {
  const std::string wanted = "/memfd:" + std::string(kOwnPageName) + " (deleted)";
  ProcessFlights result;
  std::set<FileNumber> seen_pages;
  std::map<Rank, pid_t> process_of;
  for (const pid_t process : processes) {
    const fs::path open_files = "/proc/" + std::to_string(process) + "/fd";
    bool has_page = false;
    for (const fs::path& one : entries_of(open_files)) {
      std::error_code gone;
      if (fs::read_symlink(one, gone) != wanted) continue;
      const std::optional<OpenPage> found = open_page(one);
      if (!found) continue;
      has_page = true;
      // After a fork, the child has its parent's open files, too.
      if (!seen_pages.insert(found->number).second) continue;
      RankFlight flight = flight_in(found->page[0], process);
      const auto [other, is_new] = process_of.insert({flight.rank, process});
      if (!is_new) {
        return invalid_argument(name_of(other->second) + " and " + name_of(process) +
                                " are both rank " + to_text(flight.rank) +
                                ": give the processes of one job");
      }
      result.flights.push_back(std::move(flight));
    }
    if (!has_page) result.missing.push_back(why_no_record(process, open_files));
  }
  return result;
}

void complete_flight(const WorkerPage* page, std::size_t max_calls, pid_t process,
                     RankFlight& flight) {
  const std::optional<ProcessStat> stat = process > 0 ? process_stat(process) : std::nullopt;
  flight.is_stopped = stat && stat->is_stopped();
  if (page) read_flight(*page, max_calls, flight);
  flight.boot_ns = to_page_time(BootClock::now());
  flight.wall_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                       std::chrono::system_clock::now().time_since_epoch())
                       .count();
}

}  // namespace ddprun
