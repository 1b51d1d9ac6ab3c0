#include "launcher/flight/file.h"

#include <future>
#include <utility>

#include "base/background_thread.h"
#include "launcher/flight/json.h"
#include "launcher/process/replace_file.h"

namespace ddprun {

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
    const std::string& path = writing->path;
    writing->end.set_value(
        replace_file(path, path + ".new", flight_file(*shared), "write " + path));
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
