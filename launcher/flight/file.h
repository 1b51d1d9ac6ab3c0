// FlightFile: writes the flight records of a failed generation into its log directory, for a
// later diagnosis.
//
// A separate thread writes, so a full or hung disk delays neither the agent nor the next
// generation. If the file cannot be written, there is no file. Owner: NodeWorkers, on the
// agent's one thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/result.h"
#include "launcher/flight/core/record.h"

namespace ddprun {

class FlightFile {
 public:
  // How long the end of the job waits for the last file.
  static constexpr Duration kPatience = std::chrono::seconds(1);
  // Calls of all ranks of a node together, on disk and on the agent's socket.
  static constexpr std::size_t kMaxCalls = 8 * kFlightRecords;
  static constexpr const char* kName = "flight.json";

  // Begins to write <directory>/flight.json. If the previous file is still being written,
  // returns kTimeout and writes nothing. If the previous write failed, returns its error and
  // still begins.
  Result<void> save(const std::string& directory, std::vector<RankFlight> flights);
  // Waits for the last file, at most kPatience. Returns why it could not be written, or
  // kTimeout.
  Result<void> finish();

 private:
  struct Writing;
  Result<void> wait(Duration patience);

  std::shared_ptr<Writing> writing_;  // the last one; null: none
};

}  // namespace ddprun
