#include "worker_lib/checkpoint/fencing_token.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <thread>

#include "base/concat.h"
#include "base/deadline.h"
#include "base/durable_directory.h"
#include "base/worker_env.h"
#include "worker_lib/checkpoint/io.h"
#include "worker_lib/util/sha256.h"

namespace ddprun {
namespace {

constexpr std::size_t kMaxClaimBytes = std::size_t{16} << 20;  // maximum that is written
constexpr JsonBounds kMaxClaim{.depth = 8, .values = std::size_t{4} << 20};
constexpr Duration kLockPatience = std::chrono::seconds(10);
constexpr Duration kLockPause = std::chrono::milliseconds(5);

std::string claim_path(const std::string& directory) { return directory + "/.claim.json"; }

}  // namespace

nlohmann::json to_json(const FencingToken& claim) {
  nlohmann::json document{{"claim", claim.number},
                          {"generation", claim.generation},
                          {"owner", claim.owner},
                          {"accepted", claim.accepted}};
  if (!claim.job.empty()) document["job"] = claim.job;
  for (const DisplacedJob& displaced : claim.displaced)
    document["displaced"].push_back({displaced.job, displaced.generation});
  return document;
}

FencingToken claim_of(const nlohmann::json& document) try {
  FencingToken claim{.number = document.at("claim"),
                     .generation = document.at("generation"),
                     .owner = document.at("owner"),
                     .accepted = document.at("accepted")};
  claim.job = document.value("job", "");
  if (const auto displaced = document.find("displaced"); displaced != document.end())
    for (const nlohmann::json& one : *displaced)
      claim.displaced.push_back({one.at(0).get<std::string>(), one.at(1).get<std::int64_t>()});
  return claim.number > 0 ? claim : FencingToken{};
} catch (const nlohmann::json::exception&) {
  return {};
}

Result<FencingToken> read_claim(const std::string& directory) {
  const Result<std::string> text = read_json_text(claim_path(directory), kMaxClaim);
  if (text) return claim_of(nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false));
  const Error& error = text.error();
  if (error.kind == ErrorKind::kCorrupt || error.sys_errno == ENOENT || is_beyond_reader(error))
    return FencingToken{};
  return error;
}

Result<void> write_claim(const std::string& directory, const FencingToken& claim) {
  const std::string text = to_json(claim).dump() + "\n";
  if (text.size() > kMaxClaimBytes)
    return invalid_argument(concat(directory, " holds ", claim.accepted.size(), " checkpoints, ",
                                   "too many to be listed in its .claim.json: remove some"));
  AtomicFile file(claim_path(directory));
  file.write(text.data(), text.size());
  if (const Result<WrittenFile> written = file.commit(); !written) return written.error();
  return flush_directory(directory);
}

std::string job_name(const std::string& run_id) {
  constexpr std::size_t kDigits = 12;
  const std::string submission = environment_text("DDPRUN_SUBMISSION");
  if (!submission.empty()) return run_id + ":" + sha256_hex(submission).substr(0, kDigits);
  return run_id == kDefaultJobId ? "" : run_id;
}

ClaimLock::ClaimLock(const std::string& directory)
    : fd_(::open((directory + "/.claim.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
  const Deadline deadline(kLockPatience);
  while (fd_.valid() && ::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK || deadline.passed()) fd_.reset();
    std::this_thread::sleep_for(kLockPause);
  }
}

}  // namespace ddprun
