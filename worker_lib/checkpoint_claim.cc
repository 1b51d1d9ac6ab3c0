#include "worker_lib/checkpoint_claim.h"

#include <fcntl.h>
#include <sys/file.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <thread>

#include "base/deadline.h"
#include "base/durable_directory.h"
#include "base/read_whole.h"
#include "worker_lib/checkpoint_io.h"

namespace ddprun {
namespace {

constexpr std::size_t kMaxClaimBytes = 16 << 20;
constexpr Duration kLockPatience = std::chrono::seconds(10);
constexpr Duration kLockPause = std::chrono::milliseconds(5);

std::string claim_path(const std::string& directory) { return directory + "/.claim.json"; }

}  // namespace

nlohmann::json to_json(const CheckpointClaim& claim) {
  nlohmann::json document{{"claim", claim.number},
                          {"generation", claim.generation},
                          {"owner", claim.owner},
                          {"accepted", nlohmann::json::array()}};
  for (const auto& [step, identity] : claim.accepted)
    document["accepted"].push_back({step, identity});
  return document;
}

CheckpointClaim claim_of(const nlohmann::json& document) try {
  CheckpointClaim claim{.number = document.at("claim"),
                        .generation = document.at("generation"),
                        .owner = document.at("owner"),
                        .accepted = {}};
  for (const nlohmann::json& one : document.at("accepted"))
    claim.accepted.emplace(one.at(0).get<std::int64_t>(), one.at(1).get<std::string>());
  return claim;
} catch (const nlohmann::json::exception&) {
  return {};
}

Result<CheckpointClaim> read_claim(const std::string& directory) {
  const std::string path = claim_path(directory);
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid() && errno == ENOENT) return CheckpointClaim{};
  if (!fd.valid()) return system_error("open " + path, errno);
  const Result<std::string> text = read_whole<std::string>(fd.get(), path, kMaxClaimBytes);
  if (!text) return text.error();
  return claim_of(nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false));
}

Result<void> write_claim(const std::string& directory, const CheckpointClaim& claim) {
  const std::string text = to_json(claim).dump() + "\n";
  AtomicFile file(claim_path(directory));
  file.write(text.data(), text.size());
  if (const Result<ManifestFile> written = file.commit(); !written) return written.error();
  return flush_directory(directory);
}

ClaimLock::ClaimLock(const std::string& directory)
    : fd_(::open((directory + "/.claim.lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666)) {
  const Deadline deadline(kLockPatience);
  while (fd_.valid() && ::flock(fd_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno == EINTR) continue;
    if (errno != EWOULDBLOCK || deadline.remaining() <= Duration::zero()) fd_.reset();
    std::this_thread::sleep_for(kLockPause);
  }
}

}  // namespace ddprun
