#include "launcher/flight/file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <future>
#include <utility>

#include "base/background_thread.h"
#include "base/error.h"
#include "base/unique_fd.h"
#include "base/write_all.h"
#include "launcher/flight/json.h"

namespace ddprun {
namespace {

// Writes the file under a temporary name and renames it, so that readers always see a complete
// file.
Result<void> write_file(const std::string& path, const std::string& text) {
  const std::string doing = "write " + path;
  const std::string draft = path + ".new";
  const UniqueFd file(open(draft.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
  if (!file.valid()) return system_error(doing, errno);
  if (write_all(file.get(), text) && rename(draft.c_str(), path.c_str()) == 0) return {};
  const int reason = errno;
  unlink(draft.c_str());
  return system_error(doing, reason);
}

}  // namespace

struct FlightFile::Writing {
  std::string path;
  std::promise<Result<void>> end = {};
  std::future<Result<void>> outcome = end.get_future();
};

Result<void> FlightFile::save(const std::string& directory, std::vector<RankFlight> flights) {
  const Result<void> before = wait(Duration(0));
  if (writing_) return before;
  writing_ = std::make_shared<Writing>();
  writing_->path = directory + "/" + kName;
  const auto shared = std::make_shared<std::vector<RankFlight>>(std::move(flights));
  const Result<void> started = start_detached_thread("ddprun-flight", [writing = writing_, shared] {
    writing->end.set_value(write_file(writing->path, flight_file(*shared)));
  });
  if (!started) writing_->end.set_value(started.error());
  return before;
}

Result<void> FlightFile::finish() { return wait(kPatience); }

// Waits for the last file and returns its outcome. If it has ended, forgets it.
Result<void> FlightFile::wait(Duration patience) {
  const std::shared_ptr<Writing> writing = writing_;
  if (!writing) return {};
  if (writing->outcome.wait_for(patience) != std::future_status::ready) {
    return Error{.kind = ErrorKind::kTimeout,
                 .doing = "write " + writing->path,
                 .cause = "the disk does not answer"};
  }
  writing_.reset();
  return writing->outcome.get();
}

}  // namespace ddprun
