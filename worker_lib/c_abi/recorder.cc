#include "worker_lib/c_abi/recorder.h"

#include <iterator>
#include <mutex>
#include <optional>
#include <utility>

#include "base/flight_words.h"

namespace ddprun {

WorkerEnv launcher_environment(Rank rank) {
  const Result<std::optional<WorkerEnv>> env = read_worker_env(environment_variable);
  if (env && *env) return **env;
  WorkerEnv alone;
  alone.rank = rank;
  return alone;
}

std::shared_ptr<WorkerReporter> reporter_of_process(Rank rank) {
  static std::mutex mutex;
  static std::shared_ptr<WorkerReporter> reporter;
  const std::lock_guard lock(mutex);
  if (!reporter || !reporter->is_of_this_process()) {
    reporter = WorkerReporter::open(launcher_environment(rank));
  }
  return reporter;
}

FlightType flight_type_of(ElementType type) {
  using enum FlightType;
  // By number. The last ones have no number of their own in a record.
  static constexpr FlightType kTypes[] = {kBool,       kUint8,      kInt8,     kInt16,   kInt32,
                                          kInt64,      kFloat16,    kBfloat16, kFloat32, kFloat64,
                                          kComplex64,  kComplex128, kUint16,   kUint32,  kUint64,
                                          kFloat8E5m2, kFloat8E4m3};
  static_assert(std::size(kTypes) == static_cast<std::size_t>(ElementType::kF8E5M2Fnuz));
  const auto at = static_cast<std::size_t>(type);
  return at < std::size(kTypes) ? kTypes[at] : kNone;
}

void CallRecorder::start(std::shared_ptr<WorkerReporter> reporter, std::uint64_t id,
                         std::string_view name, std::vector<int> world_ranks) {
  if (id != 0) reporter->register_group(id, name, world_ranks);
  reporter_ = std::move(reporter);
  id_ = id;
  world_ranks_ = std::move(world_ranks);
}

FlightTicket CallRecorder::begin(FlightEntry facts) {
  if (!is_message(facts.call)) ++collectives_;
  FlightTicket ticket;
  if (!reporter_) return ticket;
  facts.collective = collectives_;
  facts.group = id_;
  if (facts.peer >= 0) facts.peer = world_ranks_[facts.peer];
  ticket.reporter = reporter_;
  ticket.number = reporter_->begin_call(facts);
  return ticket;
}

}  // namespace ddprun
