// FlightFile: writes the flight records of a generation that failed where its logs are, for whoever
// looks afterwards.
//
// A thread of its own writes, so that no disk, full or hung, holds up the agent or the next generation;
// where the file cannot be written there is none. Owner: the agent, on its one thread.
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
  // The last file that was begun is waited for so long when the job ends.
  static constexpr Duration kPatience = std::chrono::seconds(1);
  // Of all ranks of a node together, on disk and on the agent's socket.
  static constexpr std::size_t kMaxCalls = 8 * kFlightRecords;
  static constexpr const char* kName = "flight.json";

  // Begins to write <directory>/flight.json. Not while one is written still: that is an error, like what
  // went wrong with the one before.
  Result<void> save(const std::string& directory, std::vector<RankFlight> flights);
  // Waits for the last one, for kPatience; why it could not be written, or not in that time.
  Result<void> finish();

 private:
  struct Writing;
  Result<void> wait(Duration patience);

  std::shared_ptr<Writing> writing_;  // the last one; null: none
};

}  // namespace ddprun
